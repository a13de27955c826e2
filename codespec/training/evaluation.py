"""Measures a pair on held-out code: which places, which models, in which order. Knows no measure's insides.

Each model is first asked alone (bits per byte, milliseconds); then one engine with both fills gaps, goes on with texts
and drafts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from codespec.config import EngineConfig
from codespec.engine.engine import Engine
from codespec.engine.load import assemble
from codespec.folders.find import find_folder
from codespec.models.language_model import LanguageModel
from codespec.models.loader import load_model
from codespec.training.acceptance import LENGTHS, Acceptance, acceptance
from codespec.training.corpus import Document
from codespec.training.gaps import Excerpt, Finder, Gap, block_gaps, excerpt_of, line_gaps, spread, task_gaps
from codespec.training.held_out import HeldOut
from codespec.training.infilling import BATCH, Filled, fill
from codespec.training.lessons import BATCH as LESSON_BATCH
from codespec.training.loops import loop_share
from codespec.training.prediction import bits_per_byte, ms_per_token
from codespec.training.progress import Steps
from codespec.training.rates import Table

# Of all rows together, so that a run takes about five minutes with the starter pair on one core.
EXCERPTS, LINES, BLOCKS, ENDS, DRAFTS = 200, 400, 240, 120, 64

Cut = TypeVar("Cut")
Rows = dict[str, list[Cut]]


@dataclass(frozen=True, slots=True)
class Places:
    """Where a pair is measured: excerpts to predict, gaps to fill, and texts to go on with, plain and with drafts."""

    excerpts: Rows[Excerpt]
    lines: Rows[Gap]
    blocks: Rows[Gap]
    tasks: Rows[Gap]
    ends: Rows[Gap]
    drafts: Rows[Gap]

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """How many places of each kind each row has."""
        kinds = {item.name: getattr(self, item.name) for item in fields(self)}
        return {kind: {row: len(found) for row, found in rows.items()} for kind, rows in kinds.items()}

    def steps(self, *, drafter: bool) -> int:
        """How many steps of work one pair is."""
        sums = {kind: sum(rows.values()) for kind, rows in self.counts.items()}
        times = {"excerpts": 1 + drafter, "drafts": len(LENGTHS) * drafter}
        return sum(times.get(kind, 1) * count for kind, count in sums.items())


@dataclass(slots=True)
class PairScores:
    """What one pair is worth; `models` and `ms_per_token` are by "target" and "drafter"."""

    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    bits: dict[str, Table] = field(default_factory=dict)
    ms_per_token: dict[str, float] = field(default_factory=dict)
    lines: Filled = field(default_factory=Filled)
    blocks: Filled = field(default_factory=Filled)
    tasks: Filled = field(default_factory=Filled)
    loops: Table = field(default_factory=Table)
    acceptance: dict[int, Acceptance] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; every rate with its count."""
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


def choose_places(held_out: HeldOut, *, seed: int = 0, limit: int = 0) -> Places:
    """The places of an evaluation, by rule; at most `limit` in each row of each kind, unless it is 0."""

    def rows(find: Finder[Cut], total: int) -> Rows[Cut]:
        count = math.ceil(total / len(held_out.rows))
        return _nonempty(held_out.rows, lambda found: spread(found, min(count, limit or count), find))

    tasks = task_gaps(held_out.tasks, seed)
    return Places(
        excerpts=rows(excerpt_of, EXCERPTS),
        lines=rows(line_gaps(seed), LINES),
        blocks=rows(block_gaps(seed), BLOCKS),
        tasks={"humaneval": tasks[: limit or None]} if tasks else {},
        ends=rows(line_gaps(seed + 1), ENDS),
        drafts=rows(line_gaps(seed + 2), DRAFTS),
    )


def _nonempty(documents: dict[str, list[Document]], choose: Callable[[Sequence[Document]], list[Cut]]) -> Rows[Cut]:
    chosen = {row: choose(found) for row, found in documents.items()}
    return {row: cuts for row, cuts in chosen.items() if cuts}


def evaluate_pair(target: str, drafter: str, places: Places, *, device: str = "cpu", label: str = "eval") -> PairScores:
    """Loads and measures a pair; `drafter` may be "none", then nothing is drafted. Raises ModelError."""
    models = {"target": load_model(target, device=device)}
    if drafter != "none":
        models["drafter"] = load_model(drafter, device=device)
    scores = PairScores(models={name: model_facts(model) for name, model in models.items()})
    steps = Steps(label, places.steps(drafter="drafter" in models))
    sample = next((gap.prefix for found in places.lines.values() for gap in found), "")
    for name, model in models.items():
        scores.bits[name] = bits_per_byte(model, places.excerpts, steps)
        if sample:
            scores.ms_per_token[name] = ms_per_token(model, sample)
    engine = evaluation_engine(models["target"], models.get("drafter"))
    scores.notes += engine.notes
    _write(engine, places, scores, steps)
    if "drafter" in models:
        scores.acceptance = {length: acceptance(engine, places.drafts, length, steps) for length in LENGTHS}
    else:
        scores.notes.append("no drafter: acceptance was not measured")
    return scores


def evaluation_engine(target: LanguageModel, drafter: LanguageModel | None) -> Engine:
    """An engine where the drafter guesses alone and from the first token on, and no prompt is cut to save time."""
    config = EngineConfig(proposers="draft_model", policy="fixed", warmup=0, max_batch=BATCH, first_answer_ms=0)
    return assemble(target, drafter, config)


def writing_engine(target: LanguageModel) -> Engine:
    """An engine that writes many texts: large batches, drafts from the text itself only."""
    return assemble(target, None, EngineConfig(proposers="suffix", warmup=0, max_batch=LESSON_BATCH, first_answer_ms=0))


def _write(engine: Engine, places: Places, scores: PairScores, steps: Steps) -> None:
    scores.lines = fill(engine.complete, places.lines, "line", steps)
    scores.blocks = fill(engine.complete, places.blocks, "block", steps)
    scores.tasks = fill(engine.complete, places.tasks, "line", steps)
    scores.loops = loop_share(engine.complete, places.ends, steps)
    scores.notes += dict.fromkeys(scores.lines.notes + scores.blocks.notes + scores.tasks.notes)


def model_facts(model: LanguageModel) -> dict[str, Any]:
    """Which model was measured: its size, and a hash of its weights and tokenizer."""
    folder = find_folder(model.spec.name)
    digest = hashlib.sha256()
    for file in [*sorted(folder.glob("*.safetensors")), *sorted(folder.glob("tokenizer.*"))]:
        digest.update(file.read_bytes())
    return {
        "name": folder.name,
        "parameters": model.spec.parameters,
        "vocabulary": model.spec.vocab_size,
        "sha256": digest.hexdigest(),
    }
