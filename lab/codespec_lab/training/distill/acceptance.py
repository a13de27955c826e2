"""Acceptance of a drafter by a target: measured with real speculation, estimated during training, compared on a card.

The target's text does not depend on the drafts. So one forward of the drafter over it shows where its argmax is the
next token, and the rounds follow by counting.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from codespec.api.config import EngineConfig
from codespec.api.types import Completion
from codespec.backends.torch.model import TorchModel
from codespec.engine.engine import Engine
from codespec.files import read_json
from codespec.speculation.policy import FixedLength
from codespec.store.catalogue import find_entry
from codespec.text.tokenizer import TextTokenizer
from codespec_lab.corpus.documents import write_atomically
from codespec_lab.progress import StageBar
from codespec_lab.training.distill.lessons import batch, make_lesson
from codespec_lab.training.distill.places import Place, request_at
from codespec_lab.training.distill.student import Student
from codespec_lab.training.distill.teacher import Expected
from codespec_lab.training.distill.texts import DistillationExample, to_example

LENGTH = 4  # target tokens per draft: the length that pays on a CPU
TOKENS = 64  # maximum tokens per measured text
BATCH = 8
MIN_GAIN, MAX_LOSS = 1.01, 0.03  # minimum gain beyond chance; maximum loss of acceptance elsewhere
_CARD = """---
language: code
library_name: transformers
license: {licence}
tags: [code, codespec, drafter]
---
# A drafter for {target}, distilled on one code base

Made from {drafter} by `codespec distill`. It guesses ahead what {target} writes in this code; the target checks every
guess, so its mistakes cost time and never text. Use it with `--drafter` and this folder.

| accepted a round (drafts of {length} tokens by the drafter alone, greedy) | before | after | |
|---|---|---|---|
| held-out files of the code ({here_places} places) | {here_before} | {here_after:.3f} | {here_gain} |
| {elsewhere} ({elsewhere_places} places) | {elsewhere_before} | {elsewhere_after:.3f} | {elsewhere_gain} |

| | |
|---|---|
| learned from | {written} texts that {target} wrote, {read} that it read{own} |
| files | {learned_files} learned from, {held_files} held out by a hash of their paths |
| recipe | {method}; step {best_step} of {steps}; AdamW, rate {rate}; text loss and forward KL; seed {seed}; {dtype} |
| vocabularies | {shared:,} of the target's {vocabulary:,} tokens are tokens of the drafter too |

Licence: {licence_line}. The code base is not part of this folder, but its names and idioms may show in the guesses.

```sh
{command}
```
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of real speculation, and the target's texts."""

    accepted: int
    rounds: int
    texts: list[DistillationExample]

    @property
    def a_round(self) -> float:
        """Drafted tokens accepted per round, without the target's own."""
        return self.accepted / max(1, self.rounds)


def measuring_engine(target: TorchModel, drafter: TorchModel | None, threads: int) -> Engine:
    """Return an engine with drafts of LENGTH target tokens from the drafter alone."""
    fixed = EngineConfig(
        proposers="draft_model",
        policy="fixed",
        warmup=0,
        max_batch=BATCH,
        first_answer_ms=0,
        learn=False,
        threads=threads,
    )
    engine = Engine.assemble(target, drafter, fixed)
    engine.policy = FixedLength(LENGTH)
    return engine


def measure(engine: Engine, places: Sequence[Place], bar: StageBar) -> Measured:
    """Complete greedily at all positions."""
    requests = [request_at(place, number, seed=0, sampled=0.0) for number, place in enumerate(places)]
    requests = [replace(request, max_tokens=min(request.max_tokens, TOKENS)) for request in requests]
    done = list[Completion]()
    for start in range(0, len(requests), BATCH):
        done += engine.complete(requests[start : start + BATCH])
        bar.update(len(done) / len(requests), f"{len(done)} texts")
    texts = [
        to_example(request, completion) for request, completion in zip(requests, done, strict=True) if completion.text
    ]
    return Measured(
        sum(completion.stats.accepted for completion in done),
        sum(completion.stats.rounds for completion in done),
        texts,
    )


class Estimate:
    """Estimate of accepted tokens per round on fixed texts of the target, from one forward of a student per text."""

    def __init__(self, student: Student, target: TextTokenizer, texts: Sequence[DistillationExample]) -> None:
        nothing = torch.zeros(0, 1)
        unknown = Expected([], nothing.int(), nothing)
        self._lessons = [make_lesson(student.tokenizer, student.template, text, unknown, "read") for text in texts]
        spelled = [target.encode_inside(text.middle) for text in texts]
        self._stops = [list(accumulate((len(target.token_bytes[n]) for n in ids), initial=0)) for ids in spelled]

    @torch.no_grad()
    def of(self, student: Student) -> float:
        """Return the estimate for the student's current weights."""
        accepted = rounds = 0
        for start in range(0, len(self._lessons), BATCH):
            lessons = self._lessons[start : start + BATCH]
            rows = batch(lessons)
            best = student.logits(rows.tokens).flatten(0, 1)[rows.rows].argmax(dim=1).cpu()
            right = (best == rows.labels).split([len(lesson.labels) for lesson in lessons])
            for place, found in enumerate(right, start):
                counted = count_rounds(self._lessons[place].bounds, found.tolist(), self._stops[place])
                accepted, rounds = accepted + counted[0], rounds + counted[1]
        return accepted / max(1, rounds)


def count_rounds(bounds: Sequence[int], right: Sequence[bool], stops: Sequence[int]) -> tuple[int, int]:
    """Return the accepted target tokens and the rounds of one text.

    Drafter token `i` lies between `bounds[i]` and `bounds[i + 1]` and is predicted if `right[i]`. The target's tokens
    lie between neighbouring `stops`. Both are byte offsets.
    """
    accepted = rounds = place = 0
    while place < len(stops) - 1:
        token = max(0, bisect_right(bounds, stops[place]) - 1)
        while token < len(right) and right[token]:
            token += 1
        reached = bisect_right(stops, bounds[min(token, len(bounds) - 1)]) - 1
        taken = min(max(0, reached - place), LENGTH, len(stops) - 2 - place)
        accepted, rounds, place = accepted + taken, rounds + 1, place + taken + 1
    return accepted, rounds


@dataclass(frozen=True, slots=True)
class Comparison:
    """Accepted tokens per round before and after, on held-out files and elsewhere; before is None for a new drafter."""

    here_before: float | None
    here_after: float
    elsewhere_before: float | None
    elsewhere_after: float

    def __str__(self) -> str:
        rows = (
            ("held-out files", self.here_before, self.here_after),
            ("elsewhere", self.elsewhere_before, self.elsewhere_after),
        )
        return "\n".join(
            f"accepted a round, {name}: {'' if before is None else f'{before:.3f} → '}{after:.3f} {gain(before, after)}"
            for name, before, after in rows
        )

    @property
    def reason(self) -> str:
        """Why the old drafter is better, or "" if the new one is."""
        if self.here_before is None or self.elsewhere_before is None:
            return ""
        if self.here_after < MIN_GAIN * self.here_before:
            return f"{self.here_after:.3f} tokens accepted a round on held-out files, {self.here_before:.3f} before"
        if self.elsewhere_after < (1 - MAX_LOSS) * self.elsewhere_before:
            return f"{self.elsewhere_after:.3f} tokens accepted a round elsewhere, {self.elsewhere_before:.3f} before"
        return ""


def write_card(folder: Path, facts: dict[str, Any], found: Comparison) -> None:
    """Write the card into the drafter's folder. Raise TrainingError."""
    text = _CARD.format(
        **facts,
        here_before=_or_none(found.here_before),
        here_after=found.here_after,
        here_gain=gain(found.here_before, found.here_after),
        elsewhere_before=_or_none(found.elsewhere_before),
        elsewhere_after=found.elsewhere_after,
        elsewhere_gain=gain(found.elsewhere_before, found.elsewhere_after),
    )
    write_atomically(folder / "README.md", text.encode())


def gain(before: float | None, after: float) -> str:
    """Return the change as a percentage, or "" without a value before."""
    return f"{100 * (after / before - 1):+.1f} %" if before else ""


def licence_of(name: str, folder: Path) -> tuple[str, str]:
    """Return a drafter's licence as its card's field and as a clause: from the catalogue, its own card, or unknown."""
    entry = find_entry(name)
    if entry is not None:
        return entry.licence.lower(), f"an adapted work of {entry.title}, under its licence ({entry.licence})"
    stated = str(read_json(folder / "config.json").get("license") or _licence_line(folder / "README.md"))
    if stated:
        return stated, f"an adapted work of its drafter, under the drafter's licence ({stated})"
    return "other", "that of the drafter it was made from"


def _licence_line(card: Path) -> str:
    if not card.is_file():
        return ""
    lines = card.read_text(encoding="utf-8", errors="replace").splitlines()[:40]
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("license:")), "")


def _or_none(value: float | None) -> str:
    return "—" if value is None else f"{value:.3f}"
