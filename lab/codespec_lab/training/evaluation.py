"""`codespec train eval`: measure a pair on held-out code and print some of its completions.

The report is a text table of one pair, or of two pairs side by side with a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from codespec.api.config import EngineConfig
from codespec.backends.loader import model_facts
from codespec.backends.torch.loader import load_torch_model
from codespec.backends.torch.model import TorchModel
from codespec.engine.engine import Engine
from codespec_lab.corpus.documents import Document
from codespec_lab.corpus.gaps import (
    BATCH,
    MAX_BLOCKS,
    MAX_LINES,
    Complete,
    Excerpt,
    Finder,
    Gap,
    block_gaps,
    excerpt_of,
    infill_request,
    is_exact,
    line_gaps,
    spread,
    task_gaps,
)
from codespec_lab.corpus.held_out import HeldOut
from codespec_lab.progress import ProgressBar
from codespec_lab.training.scores import (
    DRAFT_LENGTHS,
    Acceptance,
    InfillScores,
    Rate,
    RateTable,
    bits_per_byte,
    loop_share,
    measure_acceptance,
    ms_per_token,
    score_infilling,
)

# Totals over all rows. With MAX_LINES and MAX_BLOCKS, the starter pair takes about five minutes on one core.
MAX_EXCERPTS, MAX_PLAIN, MAX_DRAFTED = 200, 120, 64
LINES_ABOVE = 2  # lines shown before a completion
FENCE = "````"

Cut = TypeVar("Cut")
ByRow = dict[str, list[Cut]]
ARROW, MISSING = " → ", "–"
Format = Callable[[Sequence[Rate]], str]
Column = tuple[str, Sequence[RateTable], Format]


@dataclass(frozen=True, slots=True)
class EvalSet:
    """The evaluation cases: excerpts to predict, gaps to fill in, and prefixes to continue.

    `ends` are continued without drafts, to count loops; `drafts` are continued with drafts.
    """

    excerpts: ByRow[Excerpt]
    lines: ByRow[Gap]
    blocks: ByRow[Gap]
    tasks: ByRow[Gap]
    ends: ByRow[Gap]
    drafts: ByRow[Gap]

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Number of cases per kind and row."""
        kinds = {item.name: getattr(self, item.name) for item in fields(self)}
        return {kind: {row: len(found) for row, found in rows.items()} for kind, rows in kinds.items()}

    def steps(self, *, drafter: bool) -> int:
        """Return the number of progress-bar steps for one pair."""
        sums = {kind: sum(rows.values()) for kind, rows in self.counts.items()}
        times = {"excerpts": 1 + drafter, "drafts": len(DRAFT_LENGTHS) * drafter}
        return sum(times.get(kind, 1) * count for kind, count in sums.items())


@dataclass(slots=True)
class PairScores:
    """All measurements of one pair; `models`, `bits` and `ms_per_token` have the keys "target" and "drafter"."""

    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    bits: dict[str, RateTable] = field(default_factory=dict)
    ms_per_token: dict[str, float] = field(default_factory=dict)
    lines: InfillScores = field(default_factory=InfillScores)
    blocks: InfillScores = field(default_factory=InfillScores)
    tasks: InfillScores = field(default_factory=InfillScores)
    loops: RateTable = field(default_factory=RateTable)
    acceptance: dict[int, Acceptance] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values, every rate with its count."""
        return {
            "models": self.models,
            "bits_per_byte": {name: table.as_dict() for name, table in self.bits.items()},
            "line_exact": self.lines.exact.as_dict(),
            "line_bytes_right": self.lines.bytes_right.as_dict(),
            "block_exact": self.blocks.exact.as_dict(),
            "block_first_line": self.blocks.first_line.as_dict(),
            "block_bytes_right": self.blocks.bytes_right.as_dict(),
            "humaneval_line_exact": self.tasks.exact.as_dict(),
            "humaneval_line_bytes_right": self.tasks.bytes_right.as_dict(),
            "loop_share": self.loops.as_dict(),
            "accepted_per_round": {
                str(length): {"by_row": found.by_row.as_dict(), "by_context": found.by_context.as_dict()}
                for length, found in self.acceptance.items()
            },
            "ms_per_token": self.ms_per_token,
            "notes": self.notes,
        }


def choose_eval_set(held_out: HeldOut, *, seed: int = 0, limit: int = 0) -> EvalSet:
    """Choose the cases deterministically from `seed`, at most `limit` per row and kind (0: no limit)."""

    def rows(find: Finder[Cut], total: int) -> ByRow[Cut]:
        count = math.ceil(total / len(held_out.rows))
        return _nonempty(held_out.rows, lambda found: spread(found, min(count, limit or count), find))

    tasks = task_gaps(held_out.tasks, seed)
    return EvalSet(
        excerpts=rows(excerpt_of, MAX_EXCERPTS),
        lines=rows(line_gaps(seed), MAX_LINES),
        blocks=rows(block_gaps(seed), MAX_BLOCKS),
        tasks={"humaneval": tasks[: limit or None]} if tasks else {},
        ends=rows(line_gaps(seed + 1), MAX_PLAIN),
        drafts=rows(line_gaps(seed + 2), MAX_DRAFTED),
    )


def _nonempty(documents: dict[str, list[Document]], choose: Callable[[Sequence[Document]], list[Cut]]) -> ByRow[Cut]:
    chosen = {row: choose(found) for row, found in documents.items()}
    return {row: cuts for row, cuts in chosen.items() if cuts}


def evaluate_pair(
    target: str, drafter: str, eval_set: EvalSet, *, device: str = "cpu", label: str = "eval"
) -> PairScores:
    """Load a pair and measure it; with the drafter "none", skip acceptance. Raise ModelError."""
    models = {"target": load_torch_model(target, device=device)}
    if drafter != "none":
        models["drafter"] = load_torch_model(drafter, device=device)
    scores = PairScores(models={name: model_facts(model) for name, model in models.items()})
    bar = ProgressBar(label, eval_set.steps(drafter="drafter" in models))
    sample = next((gap.prefix for found in eval_set.lines.values() for gap in found), "")
    for name, model in models.items():
        scores.bits[name] = bits_per_byte(model, eval_set.excerpts, bar)
        if sample:
            scores.ms_per_token[name] = ms_per_token(model, sample)
    engine = evaluation_engine(models["target"], models.get("drafter"))
    scores.notes += engine.notes
    _score_completions(engine, eval_set, scores, bar)
    if "drafter" in models:
        scores.acceptance = {
            length: measure_acceptance(engine, eval_set.drafts, length, bar) for length in DRAFT_LENGTHS
        }
    else:
        scores.notes.append("no drafter: acceptance was not measured")
    return scores


def evaluation_engine(target: TorchModel, drafter: TorchModel | None) -> Engine:
    """Return an engine that drafts only with the drafter, from the first token on, and never shortens prompts."""
    config = EngineConfig(proposers="draft_model", policy="fixed", warmup=0, max_batch=BATCH, first_answer_ms=0)
    return Engine.assemble(target, drafter, config)


def _score_completions(engine: Engine, eval_set: EvalSet, scores: PairScores, bar: ProgressBar) -> None:
    scores.lines = score_infilling(engine.complete, eval_set.lines, "line", bar)
    scores.blocks = score_infilling(engine.complete, eval_set.blocks, "block", bar)
    scores.tasks = score_infilling(engine.complete, eval_set.tasks, "line", bar)
    scores.loops = loop_share(engine.complete, eval_set.ends, bar)
    scores.notes += dict.fromkeys(scores.lines.notes + scores.blocks.notes + scores.tasks.notes)


def show_completions(complete: Complete, held_out: HeldOut, count: int, *, seed: int = 0) -> str:
    """Return `count` completions as Markdown, for gaps chosen by `seed`; ⟨ and ⟩ enclose the target's text."""
    documents = [document for found in held_out.rows.values() for document in found]
    gaps = spread(documents, count, line_gaps(seed))
    done = [complete([infill_request(gap, "auto")])[0] for gap in gaps]
    return "\n\n".join(_show_completion(gap, completion.text) for gap, completion in zip(gaps, done, strict=True))


def _show_completion(gap: Gap, written: str) -> str:
    above = "\n".join(gap.prefix.split("\n")[-1 - LINES_ABOVE :])
    same = ", as in the file" if is_exact(written, gap.answer) else ""
    title = f"{gap.package} `{gap.path}`, line {gap.line}{same}"
    return f"{title}\n\n{FENCE}{gap.language}\n{above}⟨{written.rstrip()}⟩\n{FENCE}"


def report(scores: Sequence[PairScores]) -> str:
    """Return the tables of one pair, or of two pairs with the older first."""
    parts = [_models(scores), _by_row(scores), _by_context(scores), _milliseconds(scores)]
    parts += [f"note: {note}" for note in dict.fromkeys(note for pair in scores for note in pair.notes)]
    if len(scores) == 2:
        parts.append(verdict(scores[0], scores[1]))
    return "\n\n".join(part for part in parts if part)


def verdict(before: PairScores, after: PairScores) -> str:
    """Say whether `after` beats `before` in bits per byte (each model), exact gaps, and acceptance (each length)."""
    figures = {
        "bits per byte": _fewer_bits(before, after),
        "infilling": [sum(_outcomes(before)) < sum(_outcomes(after))],
        "acceptance": _more_accepted(before, after),
    }
    not_better = [
        name if better else f"{name} (not measured for both)"
        for name, better in figures.items()
        if not (better and all(better))
    ]
    answer = f"not better in: {', '.join(not_better)}" if not_better else f"better in all three ({', '.join(figures)})"
    changes = list(zip(_outcomes(before), _outcomes(after), strict=True))
    gained, lost = changes.count((False, True)), changes.count((True, False))
    return f"{answer}; gaps filled exactly: {gained} gained, {lost} lost"


def _fewer_bits(before: PairScores, after: PairScores) -> list[bool]:
    return [_value(after.bits[name].all) < _value(before.bits[name].all) for name in after.bits if name in before.bits]


def _more_accepted(before: PairScores, after: PairScores) -> list[bool]:
    lengths = [length for length in after.acceptance if length in before.acceptance]
    pairs = [(before.acceptance[length].by_row.all, after.acceptance[length].by_row.all) for length in lengths]
    return [_value(old) < _value(new) for old, new in pairs]


def _outcomes(pair: PairScores) -> list[bool]:
    return [*pair.lines.outcomes, *pair.blocks.outcomes, *pair.tasks.outcomes]


def _value(rate: Rate) -> float:
    return rate.value or 0.0


def _models(scores: Sequence[PairScores]) -> str:
    names = ("before", "after") if len(scores) == 2 else ("pair",)
    lines = []
    for name, pair in zip(names, scores, strict=True):
        models = [
            f"{role} {facts['parameters'] / 1e6:.2f} M ({facts['sha256'][:8]})" for role, facts in pair.models.items()
        ]
        lines.append(f"{name}: {', '.join(models)}")
    return "\n".join(lines)


def _by_row(scores: Sequence[PairScores]) -> str:
    roles = [role for role in ("target", "drafter") if any(role in pair.bits for pair in scores)]
    columns: list[Column] = [
        (f"bits/byte {role}", [pair.bits.get(role, RateTable()) for pair in scores], _decimals) for role in roles
    ]
    columns += [
        ("lines exact", [_merged(pair.lines.exact, pair.tasks.exact) for pair in scores], _shares),
        ("line bytes right", [_merged(pair.lines.bytes_right, pair.tasks.bytes_right) for pair in scores], _percent),
        ("blocks exact", [pair.blocks.exact for pair in scores], _shares),
        ("blocks' first lines", [pair.blocks.first_line for pair in scores], _shares),
        ("block bytes right", [pair.blocks.bytes_right for pair in scores], _percent),
        ("loops", [pair.loops for pair in scores], _shares),
    ]
    columns += _accepted_columns(scores, by_context=False)
    return _table("language", columns)


def _by_context(scores: Sequence[PairScores]) -> str:
    return _table("context", _accepted_columns(scores, by_context=True)) if any(p.acceptance for p in scores) else ""


def _accepted_columns(scores: Sequence[PairScores], *, by_context: bool) -> list[Column]:
    columns: list[Column] = []
    for length in dict.fromkeys(length for pair in scores for length in pair.acceptance):
        found = [pair.acceptance.get(length) for pair in scores]
        tables = [RateTable() if a is None else a.by_context if by_context else a.by_row for a in found]
        columns.append((f"accepted of {length}", tables, _with_counts if by_context else _decimals))
    return columns


def _merged(first: RateTable, second: RateTable) -> RateTable:
    return RateTable({**first, **second})


def _milliseconds(scores: Sequence[PairScores]) -> str:
    roles = dict.fromkeys(role for pair in scores for role in pair.ms_per_token)
    times = [
        f"{role} {ARROW.join(f'{pair.ms_per_token[role]:.2f}' for pair in scores if role in pair.ms_per_token)}"
        for role in roles
    ]
    return f"milliseconds per token (plain, batch 1, median): {', '.join(times)}" if times else ""


def _table(corner: str, columns: Sequence[Column]) -> str:
    rows = list(dict.fromkeys(row for _, tables, _ in columns for table in tables for row in table))
    lines = [[corner, *(title for title, _, _ in columns)]]
    lines += [[row, *(show([t.get(row, Rate()) for t in tables]) for _, tables, show in columns)] for row in rows]
    lines.append(["all", *(show([t.all for t in tables]) for _, tables, show in columns)])
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def _decimals(rates: Sequence[Rate]) -> str:
    return _joined(rates, lambda value: f"{value:.3f}")


def _percent(rates: Sequence[Rate]) -> str:
    return _joined(rates, lambda value: f"{100 * value:.1f} %")


def _joined(rates: Sequence[Rate], show: Callable[[float], str]) -> str:
    """Format the figure of each pair, or one dash if no pair has a count."""
    if not any(rate.count for rate in rates):
        return MISSING
    return ARROW.join(MISSING if rate.value is None else show(rate.value) for rate in rates)


def _shares(rates: Sequence[Rate]) -> str:
    """Format the number of correct cases of each pair and the total."""
    if not any(rate.count for rate in rates):
        return MISSING
    return f"{ARROW.join(f'{rate.amount:.0f}' for rate in rates)} of {rates[-1].count}"


def _with_counts(rates: Sequence[Rate]) -> str:
    return f"{_decimals(rates)} ({rates[-1].count})"
