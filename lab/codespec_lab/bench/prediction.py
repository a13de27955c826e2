"""`codespec bench prediction`: rewrite a file with five small edits, by a target that is forced to the new text.

Speculation is off and on in turn: with the old file as prediction, with another file, and without any. One text is
decoded at a time. Prefill does not count: the clock covers the steps after the first. The prompt does not contain the
old file, so lookups find none of it. Every text has its own scope, so that no pass finds another pass's text.

The files are the first lines of held-out Python, with five small rule-based edits in each; an unrelated file is the
useless prediction.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from codespec.contract.types import CompletionRequest, Stats
from codespec.engine.build import build_engine
from codespec.engine.engine import Engine
from codespec.errors import ConfigError
from codespec.sequence import Candidates
from codespec.text.align import retokenize, tail_window
from codespec.verify.acceptance import View
from codespec_lab.bench.daemon import run_facts
from codespec_lab.bench.harness import Figures, Scenario
from codespec_lab.bench.report import format_load, format_ratio, table
from codespec_lab.bench.settings import PredictionBench
from codespec_lab.bench.sites import read_held_out_code
from codespec_lab.corpus.documents import Document

LANGUAGE = "python"
PROMPT_LINES = 40  # from the end of the other file: enough context to draft from the start
PROMPT = "{}\n# {}, written again with a few small edits:\n"
_WORD = re.compile(r"[A-Za-z_]\w*")
_INDENT = re.compile(r"\s*")
OFF, RIGHT, USELESS, NONE = "off", "old file", "another file", "no prediction"
CELLS = (RIGHT, USELESS, NONE)
SPARE = 8  # tokens of the context that stay free


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A file to rewrite: `old` becomes `new`; `other` is another file."""

    name: str
    prompt: str
    old: str
    new: str
    other: str


def find_rewrites(
    held_out: Path | None, count: int, lines: int, fits: Callable[[Rewrite], bool]
) -> tuple[list[Rewrite], str]:
    """Return the first `count` files that have `lines` lines and pass `fits`, and a note for the report. Raise
    ConfigError if there are fewer, TrainingError if a file of held-out code can't be read.
    """
    code = read_held_out_code(held_out)
    documents = next((found for name, found in code.rows.items() if name.lower() == LANGUAGE), None)
    documents = documents or next(iter(code.rows.values()))
    rewrites = list(islice(filter(fits, _rewrites(documents, lines)), count))
    if len(rewrites) < count:
        raise ConfigError(
            f"{len(rewrites)} held-out files have {lines} lines and fit the context, {count} are needed: lower --lines "
            "or --limit."
        )
    return rewrites, code.note


def _rewrites(documents: Sequence[Document], lines: int) -> Iterator[Rewrite]:
    long = [document for document in documents if document.text.count("\n") >= lines]
    for other, document in pairwise(long):
        old = "".join(document.text.splitlines(keepends=True)[:lines])
        before = "".join(other.text.splitlines(keepends=True)[-PROMPT_LINES:])
        template = "".join(other.text.splitlines(keepends=True)[:lines])
        name = f"{document.package}/{document.path}"
        yield Rewrite(name, PROMPT.format(before, name), old, edit(old), template)


def edit(text: str) -> str:
    """Make five small, evenly spread edits: extend a name, add a line, delete one, append to one, replace one."""
    lines = text.splitlines(keepends=True)
    places = [_next_code(lines, (2 * number + 1) * len(lines) // 10) for number in range(5)]
    edits = (_rename, _insert, _delete, _append, _replace)
    for place, change in reversed(list(zip(places, edits, strict=True))):
        lines[place : place + 1] = change(lines[place])
    return "".join(lines)


def _next_code(lines: Sequence[str], start: int) -> int:
    """Return the index of the first line with a word at or after `start`, or of the last line."""
    return next((number for number in range(start, len(lines)) if _WORD.search(lines[number])), len(lines) - 1)


def _rename(line: str) -> list[str]:
    name = max(_WORD.findall(line), key=len, default="")
    return [line.replace(name, f"{name}_new") if name else line]


def _insert(line: str) -> list[str]:
    return [f"{_indent(line)}checked = True  # as it was asked for\n", line]


def _delete(_: str) -> list[str]:
    return []


def _append(line: str) -> list[str]:
    return [line.rstrip("\n") + "  # changed\n"]


def _replace(line: str) -> list[str]:
    return [f"{_indent(line)}return None\n"]


def _indent(line: str) -> str:
    return _INDENT.match(line)[0].rstrip("\n")  # type: ignore[index]  # it matches any text


@dataclass(frozen=True, slots=True)
class Pass:
    """One text, written once: its ids, the seconds and tokens after the first step, and its statistics."""

    ids: tuple[int, ...]
    seconds: float
    tokens: int
    stats: Stats

    @property
    def token_seconds(self) -> float:
        """Return the seconds per token."""
        return self.seconds / max(1, self.tokens)


def run_prediction_bench(bench: PredictionBench, tell: Callable[[str], None] = print) -> dict[str, Any]:
    """Return all figures as plain JSON values. Call `tell` with each phase."""
    load = os.getloadavg()[0]
    tell("loading …")
    engine = build_engine(replace(bench.config, max_batch=1, learn=False))
    writer = Writer(engine)
    rewrites, note = find_rewrites(bench.held_out, bench.limit, bench.lines, writer.fits)
    for cell in (OFF, *CELLS):
        writer.write(rewrites[0], cell, tokens=100)  # the first passes of a process are slow
    passes: dict[str, list[tuple[str, Pass]]] = {cell: [] for cell in (OFF, *CELLS)}
    for repeat in range(bench.repeats):
        for rewrite in rewrites:
            tell(f"{rewrite.name}, {repeat + 1} of {bench.repeats} …")
            for cell in (OFF, *(CELLS if repeat % 2 else CELLS[::-1])):
                passes[cell].append((rewrite.name, writer.write(rewrite, cell)))
    return {
        **run_facts(load),
        "note": note,
        "notes": list(engine.notes),
        "settings": {
            **{name: getattr(bench.config, name) for name in ("dtype", "drafter_dtype", "policy", "proposers")},
            "target": engine.target.spec.name,
            "mode": engine.mode,
            "files": [rewrite.name for rewrite in rewrites],
            "lines": bench.lines,
            "repeats": bench.repeats,
        },
        "off": {"tokens": [p.tokens for _, p in passes[OFF]], "token_ms": _token_ms(passes[OFF])},
        "cells": {cell: _cell(passes[OFF], passes[cell]) for cell in CELLS},
        "mismatches": mismatches(passes),
    }


class ForcedRule:
    """An acceptance rule that accepts the given text only.

    `choices` maps each byte offset after the prompt to the id that begins there; a candidate is accepted if it is that
    id. The rule reads the choices of all accepted rows as the matching rule does, so that it takes as long.
    """

    def __init__(self, choices: Mapping[int, int]) -> None:
        self._choices = choices

    def judge(self, candidates: Candidates, view: View) -> tuple[int, int]:
        """Return the number of leading candidates that match the given text, and the next id of the text."""
        for row, candidate in enumerate(candidates.ids):
            view.chosen(row)
            if candidate != self._choices[view.positions[row].offset]:
                return row, self._choices[view.positions[row].offset]
        last = len(candidates.ids)
        view.chosen(last)
        return last, self._choices[view.positions[last].offset]


def choices_of(ids: list[int], token_bytes: list[bytes], end: int) -> dict[int, int]:
    """Return each id by the offset at which it begins, and `end`, which ends the text, after the last one."""
    offset, choices = 0, {}
    for number in ids:
        choices[offset] = number
        offset += len(token_bytes[number])
    return {**choices, offset: end}


class Writer:
    """Rewrites files with one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._scopes = count()

    def fits(self, rewrite: Rewrite) -> bool:
        """Return whether prompt and text fit the context and the tokenizer reproduces the text byte by byte."""
        tokenizer, ids = self.engine.target.tokenizer, self._ids(rewrite)
        spelled = b"".join(tokenizer.token_bytes[number] for number in ids)
        needed = len(tokenizer.encode(rewrite.prompt)) + len(ids) + SPARE
        return spelled == rewrite.new.encode() and needed <= self.engine.context

    def write(self, rewrite: Rewrite, cell: str, tokens: int = 0) -> Pass:
        """Run one pass over `tokens` tokens of the text, or over all of it."""
        ids, target = self._ids(rewrite), self.engine.target
        self.engine.judge_by(ForcedRule(choices_of(ids, target.token_bytes, min(target.tokenizer.model_eos_ids))))
        request = CompletionRequest(
            prefix=rewrite.prompt,
            prediction={RIGHT: rewrite.old, USELESS: rewrite.other}.get(cell, ""),
            max_tokens=tokens or len(ids),
            speculate=cell != OFF,
            scope=f"pass {next(self._scopes)}",
        )
        (sequence,) = self.engine.submit(request)
        seconds, first = 0.0, 0
        while not sequence.finish_reason:
            before, began = sequence.num_generated, time.perf_counter()
            self.engine.step()
            if before:
                seconds += time.perf_counter() - began
            else:
                first = sequence.num_generated
        written = tuple(sequence.ids[len(sequence.prompt_ids) :])
        return Pass(written, seconds, len(written) - first, sequence.stats)

    def _ids(self, rewrite: Rewrite) -> list[int]:
        """Return the text, as it follows the prompt, in the target's tokens."""
        return retokenize(self.engine.target.tokenizer, tail_window(rewrite.prompt.encode()), rewrite.new.encode())


def mismatches(passes: Mapping[str, Sequence[tuple[str, Pass]]]) -> list[str]:
    """List the passes that wrote a file differently from the first pass without speculation."""
    first = {name: each.ids for name, each in reversed(passes[OFF])}
    return [f"{name}, {cell}" for cell, all_ in passes.items() for name, each in all_ if each.ids != first[name]]


def _cell(off: Sequence[tuple[str, Pass]], on: Sequence[tuple[str, Pass]]) -> dict[str, Any]:
    """Return the speed-ups over off, pass by pass, and the counts of the drafts by source."""
    pairs = zip(off, on, strict=True)
    ratios = [plain.token_seconds / drafted.token_seconds for (_, plain), (_, drafted) in pairs]
    total = Stats()
    for _, each in on:
        total.add(each.stats)
    return {
        "faster": {"ratio": median(ratios), "low": min(ratios), "high": max(ratios)},
        "ratios": ratios,
        "token_ms": _token_ms(on),
        "tokens_a_round": total.committed / max(1, total.rounds),
        "by_source": total.as_dict()["by_source"],
    }


def _token_ms(passes: Sequence[tuple[str, Pass]]) -> float:
    return 1000 * median(each.token_seconds for _, each in passes)


def report(found: Figures) -> list[str]:
    """Return the report as lines; ratios are medians over passes, with the minimum and maximum."""
    settings, machine, off = found["settings"], found["machine"], found["off"]
    files = f"{len(settings['files'])} files of {settings['lines']} lines, {settings['repeats']} times"
    rows = [["prediction", "ms a token", "tokens a round", "× off (least–most)", "accepted"]]
    rows.append(["off", f"{off['token_ms']:.2f}", "1.0", "", ""])
    for name, cell in found["cells"].items():
        accepted = (f"{source} {n['accepted']} of {n['drafted']}" for source, n in sorted(cell["by_source"].items()))
        figures = [f"{cell['token_ms']:.2f}", f"{cell['tokens_a_round']:.1f}", format_ratio(cell["faster"], 2)]
        rows.append([name, *figures, "; ".join(accepted)])
    return [
        f"{settings['target']}, {settings['dtype']}, {settings['mode']}; {files}; {format_load(machine)}",
        machine["processor"],
        *([found["note"]] if found["note"] else []),
        "",
        *table(rows),
    ]


SCENARIO = Scenario(run_prediction_bench, report, mismatches=lambda found: list(found["mismatches"]))
