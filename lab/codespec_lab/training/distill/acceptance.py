"""How much of a drafter's guesses a target accepts: measured by real speculation, and estimated in between.

The target's text does not depend on what is drafted, so one reading of it tells where the drafter's best guess is the
text's own next token; rounds follow by counting. Knows engines and lessons; knows no training.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from codespec.config import EngineConfig
from codespec.engine.load import assemble
from codespec.models.language_model import LanguageModel
from codespec.progress import StageBar
from codespec.speculation.policy import FixedLength
from codespec.text.tokenizer import TextTokenizer
from codespec.types import Completion
from codespec_lab.training.distill.lessons import batch, make_lesson
from codespec_lab.training.distill.places import Place, request_at
from codespec_lab.training.distill.student import Student
from codespec_lab.training.distill.teacher import Expected
from codespec_lab.training.distill.texts import DistillationExample, to_example

LENGTH = 4  # target tokens of a draft: what pays on a processor
TOKENS = 64  # of a text that is measured
BATCH = 8


@dataclass(frozen=True, slots=True)
class Measured:
    """What real speculation brought, and the texts that the target wrote meanwhile."""

    accepted: int
    rounds: int
    texts: list[DistillationExample]

    @property
    def a_round(self) -> float:
        """Drafted tokens accepted a round, without the target's own."""
        return self.accepted / max(1, self.rounds)


def measure(
    target: LanguageModel, drafter: LanguageModel | None, places: Sequence[Place], threads: int, bar: StageBar
) -> Measured:
    """Complete greedily at all places with drafts of LENGTH target tokens by the drafter alone."""
    fixed = EngineConfig(
        proposers="draft_model",
        policy="fixed",
        warmup=0,
        max_batch=BATCH,
        first_answer_ms=0,
        learn=False,
        threads=threads,
    )
    engine = assemble(target, drafter, fixed)
    engine.policy = FixedLength(LENGTH)
    requests = [request_at(place, number, seed=0, sampled=0.0) for number, place in enumerate(places)]
    requests = [replace(request, max_tokens=min(request.max_tokens, TOKENS)) for request in requests]
    done = list[Completion]()
    for start in range(0, len(requests), BATCH):
        done += engine.complete(requests[start : start + BATCH])
        bar.update(len(done) / len(requests), f"{len(done)} texts")
    texts = [to_example(request, one) for request, one in zip(requests, done, strict=True) if one.text]
    return Measured(sum(one.stats.accepted for one in done), sum(one.stats.rounds for one in done), texts)


class Estimate:
    """Accepted tokens a round on fixed texts of the target, by one reading of a student."""

    def __init__(self, student: Student, target: TextTokenizer, texts: Sequence[DistillationExample]) -> None:
        nothing = torch.zeros(0, 1)
        unknown = Expected([], nothing.int(), nothing)
        self._lessons = [make_lesson(student.tokenizer, student.template, text, unknown, "read") for text in texts]
        spelled = [target.encode_inside(text.middle) for text in texts]
        self._stops = [list(accumulate((len(target.token_bytes[n]) for n in ids), initial=0)) for ids in spelled]

    @torch.no_grad()
    def of(self, student: Student) -> float:
        """The estimate for the student as it is."""
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
    """Accepted target tokens and rounds of one text. The drafter's token `i` lies between `bounds[i]` and
    `bounds[i + 1]`, and is guessed if `right[i]`; the target's tokens lie between neighbouring `stops`, in bytes.
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
