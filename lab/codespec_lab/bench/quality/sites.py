"""The gaps of `codespec bench quality`: three kinds in HumanEval's solutions, two in held-out code.

A hash of the seed, the kind and the name selects them, so that none is hand-picked and every target gets the same ones.

HumanEval-Infilling's rules (Bavarian et al. 2022) cut HumanEval's own solutions instead:

single-line   each line with text, its line break included: 1,033 sites in HumanEval's 164 problems
multi-line    each run of whole lines that begins and ends with one: 5,815 sites
random-span   SPANS texts a problem between any two characters, chosen by the seed: not the published spans

The whole solution surrounds a gap, the prompt is not healed, and a completion ends at the model's end token; a
single-line completion ends with its line. A gap at a solution's end is followed by a line break, since codespec builds
no fill-in-the-middle prompt without text after the cursor.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from codespec.api.types import CompletionRequest, Shape
from codespec.errors import ConfigError
from codespec.text.fim import build_prompt
from codespec.text.fim_templates import FimMissing, find_template
from codespec.text.tokenizer import TextTokenizer
from codespec_lab.bench.settings import LINE, MULTI, SEED, SINGLE, SPAN, TASK_KINDS
from codespec_lab.corpus.gaps import MAX_BLOCKS, MAX_LINES, MAX_TOKENS, Gap, block_gaps, line_gaps, spread, task_gaps
from codespec_lab.corpus.held_out import HeldOut, Task

HUMANEVAL = "humaneval"  # the row of its kinds; the rows of held-out code are languages
MULTI_LINES = range(2, 7)
MIN_SPAN = 4  # characters without white space: fewer are right by chance
MANY_TOKENS = 160  # for several lines of a solution, which may be longer than a block in an editor
TRIES = 50

Finder = Callable[[Sequence[Task], int], list[Gap]]
SPANS = 10  # per problem
TOKENS_OF_KIND = {SINGLE: 64, MULTI: 256, SPAN: 256}  # longest in Qwen's tokens: 47 for a line, 240 for a solution


@dataclass(frozen=True, slots=True)
class GapSite:
    """A gap, its kind and its row in the report."""

    kind: str
    row: str
    gap: Gap

    @property
    def shape(self) -> Shape:
        """Return the shape of an editor's request: `line` if one line is missing, `block` if several are."""
        return "line" if "\n" not in self.gap.answer else "block"

    @property
    def tokens(self) -> int:
        """Return the token limit of a completion."""
        return MANY_TOKENS if self.kind in TASK_KINDS and self.shape == "block" else MAX_TOKENS[self.shape]

    @property
    def source(self) -> tuple[str, str]:
        """Return the text that the gap was cut from: gaps of one text are not independent samples."""
        return self.gap.package, self.gap.path


def choose_sites(held_out: HeldOut, kinds: Sequence[str], *, seed: int = SEED, limit: int = 0) -> list[GapSite]:
    """Return the sites of `kinds`: one for each HumanEval problem, and those of `codespec train eval` in each language.
    `limit` restricts the problems and the sites of a language (0: no limit). Raise ConfigError if the texts contain no
    site of a kind.
    """
    found: list[GapSite] = []
    for kind in kinds:
        if kind in TASK_KINDS:
            gaps = _FINDERS[kind](held_out.tasks[: limit or None], seed)
            sites = [GapSite(kind, HUMANEVAL, gap) for gap in gaps]
        else:
            sites = _in_projects(held_out, kind, seed, limit)
        if not sites:
            raise ConfigError(f"The texts hold no site of the kind {kind}: name other files, or leave that kind out.")
        found += sites
    return found


def sample_sites(sites: Sequence[GapSite], count: int, seed: int) -> list[GapSite]:
    """Draw at most `count` sites of each kind by the seed, as evenly as possible over its rows, in their order."""
    chosen: set[int] = set()
    for kind in dict.fromkeys(site.kind for site in sites):
        rows: dict[str, list[int]] = {}
        for number, site in enumerate(sites):
            if site.kind == kind:
                rows.setdefault(site.row, []).append(number)
        dice = random.Random(f"{seed} {kind}")
        for numbers in rows.values():
            dice.shuffle(numbers)
        turns = [number for turn in zip_longest(*rows.values()) for number in turn if number is not None]
        chosen.update(turns[:count])
    return [sites[number] for number in sorted(chosen)]


def multi_line_gaps(tasks: Sequence[Task], seed: int) -> list[Gap]:
    """Return a gap of two to six lines for each solution that is long enough; its first and last lines are not empty.
    The cursor is after the first line's indent, as in an editor.
    """
    gaps = []
    for task in tasks:
        lines = task.solution.split("\n")
        runs = [
            (first, first + count)
            for count in MULTI_LINES
            for first in range(len(lines) - count + 1)
            if lines[first].strip() and lines[first + count - 1].strip()
        ]
        if runs:
            first, end = runs[_hash(seed, MULTI, task) % len(runs)]
            indent = len(lines[first]) - len(lines[first].lstrip())
            begin = sum(len(line) + 1 for line in lines[:first]) + indent
            gaps.append(gap_between(task, begin, begin + len("\n".join(lines[first:end])) - indent))
    return gaps


def span_gaps(tasks: Sequence[Task], seed: int) -> list[Gap]:
    """Return the text between any two characters of each solution, within words too, without trailing white space,
    which no completion in an editor has.
    """
    gaps = []
    for task in tasks:
        size = len(task.solution.rstrip()) + 1
        spans = (
            sorted(_hash(seed, f"{SPAN} {end} {attempt}", task) % size for end in ("one end", "the other"))
            for attempt in range(TRIES)
        )
        fits = (span for span in spans if len("".join(task.solution[span[0] : span[1]].split())) >= MIN_SPAN)
        span = next(fits, None)
        if span is not None:
            begin, end = span
            gaps.append(gap_between(task, begin, begin + len(task.solution[begin:end].rstrip())))
    return gaps


def gap_between(task: Task, begin: int, end: int) -> Gap:
    """Return the text between two characters of a solution as a gap."""
    before = task.prompt + task.solution[:begin]
    line = before.count("\n") + 1
    return Gap(HUMANEVAL, task.name, "python", line, before, task.solution[begin:end], task.solution[end:])


_FINDERS: dict[str, Finder] = {SINGLE: task_gaps, MULTI: multi_line_gaps, SPAN: span_gaps}


def _in_projects(held_out: HeldOut, kind: str, seed: int, limit: int) -> list[GapSite]:
    total, find = (MAX_LINES, line_gaps(seed)) if kind == LINE else (MAX_BLOCKS, block_gaps(seed))
    count = math.ceil(total / max(1, len(held_out.rows)))
    return [
        GapSite(kind, row, gap)
        for row, documents in held_out.rows.items()
        for gap in spread(documents, min(count, limit or count), find)
    ]


def _hash(seed: int, kind: str, task: Task) -> int:
    name = f"{seed}\0{kind}\0{task.name}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def infilling_sites(held_out: HeldOut, kinds: Sequence[str], *, seed: int, limit: int = 0) -> list[GapSite]:
    """Return all sites of `kinds` in the first `limit` problems (0: all). Held-out code is cut as for an editor."""
    found: list[GapSite] = []
    for kind in kinds:
        if kind in TASK_KINDS:
            for task in held_out.tasks[: limit or None]:
                found += [GapSite(kind, HUMANEVAL, gap) for gap in infilling_gaps(task, kind, seed)]
        else:
            found += choose_sites(held_out, [kind], seed=seed, limit=limit)
    return found


def infilling_gaps(task: Task, kind: str, seed: int) -> list[Gap]:
    """Return all gaps of one kind in a problem's solution."""
    if kind == SPAN:
        return _spans(task, seed)
    lines = task.solution.splitlines(keepends=True)
    begins = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
    written = [number for number, line in enumerate(lines) if line.strip()]
    runs = [(first, last) for first in written for last in written if first == last or (first < last and kind == MULTI)]
    return [gap_between(task, begins[first], begins[last + 1]) for first, last in runs]


def infilling_request(site: GapSite, left_only: bool) -> CompletionRequest:
    """Return the request of a site for an engine."""
    before, behind = _around(site, left_only)
    return CompletionRequest(
        prefix=before,
        suffix=behind,
        path=site.gap.path,
        language=site.gap.language,
        max_tokens=max_tokens(site),
        stop=stops(site),
        speculate=False,
    )


def prompt_ids(tokenizer: TextTokenizer, site: GapSite, left_only: bool, context: int) -> list[int]:
    """Return the prompt that an engine with this context builds for that request, to send to another server."""
    before, behind = _around(site, left_only)
    found = find_template(tokenizer)
    return build_prompt(
        tokenizer,
        None if isinstance(found, FimMissing) else found,
        prefix=before,
        suffix=behind,
        path=site.gap.path,
        budget=context - max_tokens(site),
        heal=False,
    ).ids


def max_tokens(site: GapSite) -> int:
    """Return the token limit of a completion."""
    return TOKENS_OF_KIND.get(site.kind, site.tokens)


def stops(site: GapSite) -> tuple[str, ...]:
    """Return the texts that end a completion in addition to an end token."""
    return ("\n",) if site.kind in (SINGLE, LINE) else ()


def cut(site: GapSite, written: str) -> str:
    """Return the part of a completion to score. A missing line of HumanEval includes its line break."""
    if site.kind not in (SINGLE, LINE):
        return written
    line = written.partition("\n")[0]
    return line + "\n" if site.gap.answer.endswith("\n") else line


def _spans(task: Task, seed: int) -> list[Gap]:
    dice = random.Random(f"{seed} {SPAN} {task.name}")
    size = len(task.solution)
    spans: dict[tuple[int, int], None] = {}
    for _ in range(SPANS * SPANS):  # short solutions have few spans
        begin, end = sorted((dice.randint(0, size), dice.randint(0, size)))
        if len(spans) < SPANS and task.solution[begin:end].strip():
            spans[begin, end] = None
    return [gap_between(task, begin, end) for begin, end in spans]


def _around(site: GapSite, left_only: bool) -> tuple[str, str]:
    gap = site.gap
    before, behind = (gap.before, gap.behind) if site.kind in TASK_KINDS else (gap.prefix, gap.suffix)
    return before, "" if left_only else behind or "\n"
