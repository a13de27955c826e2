"""`codespec train eval`: measure a pair on held-out code and print some of its completions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from codespec.contract.engine_config import EngineConfig
from codespec.engine.build import assemble
from codespec.engine.engine import Engine
from codespec.models.language_model import LanguageModel
from codespec.models.loader import load_model, model_facts
from codespec_lab.corpus.documents import Document
from codespec_lab.corpus.gaps import (
    MAX_BLOCKS,
    MAX_LINES,
    Excerpt,
    Finder,
    Gap,
    block_gaps,
    excerpt_of,
    line_gaps,
    spread,
    task_gaps,
)
from codespec_lab.corpus.held_out import HeldOut
from codespec_lab.corpus.infilling import BATCH, Complete, infill_request, is_exact
from codespec_lab.progress import ProgressBar
from codespec_lab.training.scores import (
    DRAFT_LENGTHS,
    Acceptance,
    InfillScores,
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
    models = {"target": load_model(target, device=device)}
    if drafter != "none":
        models["drafter"] = load_model(drafter, device=device)
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


def evaluation_engine(target: LanguageModel, drafter: LanguageModel | None) -> Engine:
    """Return an engine that drafts only with the drafter, from the first token on, and never shortens prompts."""
    config = EngineConfig(proposers="draft_model", policy="fixed", warmup=0, max_batch=BATCH, first_answer_ms=0)
    return assemble(target, drafter, config)


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
    return "\n\n".join(_show_completion(gap, one.text) for gap, one in zip(gaps, done, strict=True))


def _show_completion(gap: Gap, written: str) -> str:
    above = "\n".join(gap.prefix.split("\n")[-1 - LINES_ABOVE :])
    same = ", as in the file" if is_exact(written, gap.answer) else ""
    title = f"{gap.package} `{gap.path}`, line {gap.line}{same}"
    return f"{title}\n\n{FENCE}{gap.language}\n{above}⟨{written.rstrip()}⟩\n{FENCE}"
