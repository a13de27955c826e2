"""Measurements of a model or a pair, as rates by row: infilling, loops, acceptance, bits, milliseconds.

A row is a language, or the standard library.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from codespec_grammars import ContextTracker

from codespec.api.types import Completion, CompletionRequest, RoundEvent, Shape
from codespec.backends.language_model import Rows, common_prefix
from codespec.backends.torch.model import TorchModel
from codespec.engine.engine import Engine
from codespec.speculation.policy import FixedLength
from codespec_lab.corpus.gaps import BATCH, Complete, Excerpt, Gap, begins_right, infill_request, is_exact, is_loop
from codespec_lab.progress import ProgressBar

LOOP_TOKENS = 64
DRAFT_LENGTHS, DRAFTED_TOKENS = (2, 4, 8), 48
LONGEST = 2048  # tokens
TIMED_CONTEXT, WARM_UP, TIMED = 256, 8, 48  # tokens


@dataclass(slots=True)
class Rate:
    """An amount over a count: correct answers over gaps, bits over bytes, accepted tokens over rounds."""

    amount: float = 0.0
    count: int = 0

    def add(self, amount: float, count: int = 1) -> None:
        """Add the result of one case."""
        self.amount += amount
        self.count += count

    @property
    def value(self) -> float | None:
        """The mean, or None if the count is 0."""
        return self.amount / self.count if self.count else None


class RateTable(dict[str, Rate]):
    """Rates by row, in order of first appearance."""

    def add(self, row: str, amount: float, count: int = 1) -> None:
        """Add one case to a row."""
        self.setdefault(row, Rate()).add(amount, count)

    @property
    def all(self) -> Rate:
        """The sum over all rows."""
        return Rate(sum(rate.amount for rate in self.values()), sum(rate.count for rate in self.values()))

    def as_dict(self) -> dict[str, dict[str, float | int | None]]:
        """Return plain JSON values, with the sum under "all"."""
        rows = {**self, "all": self.all}
        return {
            row: {"value": rate.value, "amount": round(rate.amount, 6), "count": rate.count}
            for row, rate in rows.items()
        }


@dataclass(slots=True)
class InfillScores:
    """Gaps filled exactly, gaps whose first line is right, and bytes before the first wrong one, by row.

    `outcomes` holds, gap by gap, whether the answer was exact; `notes` are the engine's, for example that the model
    ignores the text after the cursor.
    """

    exact: RateTable = field(default_factory=RateTable)
    first_line: RateTable = field(default_factory=RateTable)
    bytes_right: RateTable = field(default_factory=RateTable)
    outcomes: list[bool] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, row: str, gap: Gap, done: Completion) -> None:
        """Score one completion."""
        self.outcomes.append(is_exact(done.text, gap.answer))
        self.exact.add(row, self.outcomes[-1])
        self.first_line.add(row, begins_right(done.text, gap.answer))
        answer = gap.answer.rstrip().encode()
        self.bytes_right.add(row, common_prefix(done.text.encode(), answer), len(answer))
        self.notes.extend(note for note in done.stats.notes if note not in self.notes)


@dataclass(slots=True)
class Acceptance:
    """Accepted draft tokens over rounds at one draft length, without bonus tokens, by row and by syntax context."""

    by_row: RateTable = field(default_factory=RateTable)
    by_context: RateTable = field(default_factory=RateTable)


def score_infilling(
    complete: Complete, gaps: Mapping[str, Sequence[Gap]], shape: Shape, bar: ProgressBar
) -> InfillScores:
    """Fill in all gaps greedily, with requests like an editor's, and compare with the file."""
    scores = InfillScores()
    for row, batch in _batches(gaps):
        for gap, done in zip(batch, complete([infill_request(gap, shape) for gap in batch]), strict=True):
            scores.add(row, gap, done)
        bar.advance(len(batch))
    return scores


def loop_share(complete: Complete, gaps: Mapping[str, Sequence[Gap]], bar: ProgressBar) -> RateTable:
    """Return the share of loops among greedy completions of LOOP_TOKENS tokens after each gap's prefix."""
    table = RateTable()
    for row, batch in _batches(gaps):
        requests = [
            CompletionRequest(prefix=gap.prefix, path=gap.path, max_tokens=LOOP_TOKENS, speculate=False)
            for gap in batch
        ]
        for done in complete(requests):
            table.add(row, is_loop(done.text.encode()))
        bar.advance(len(batch))
    return table


def _batches(gaps: Mapping[str, Sequence[Gap]]) -> Iterator[tuple[str, Sequence[Gap]]]:
    for row, found in gaps.items():
        for start in range(0, len(found), BATCH):
            yield row, found[start : start + BATCH]


def measure_acceptance(engine: Engine, gaps: Mapping[str, Sequence[Gap]], length: int, bar: ProgressBar) -> Acceptance:
    """Complete after each gap's prefix with drafts of `length` target tokens. Sets the engine's policy."""
    engine.policy = FixedLength(length)
    acceptance = Acceptance()
    for row, found in gaps.items():
        for gap in found:
            _count_rounds(engine, gap, length, row, acceptance)
            bar.advance()
    return acceptance


def drafted_request(gap: Gap) -> CompletionRequest:
    """Return a request that continues a gap's prefix, with drafts."""
    return CompletionRequest(prefix=gap.prefix, path=gap.path, max_tokens=DRAFTED_TOKENS, speculate=True)


def _count_rounds(engine: Engine, gap: Gap, length: int, row: str, acceptance: Acceptance) -> None:
    """Count the rounds of one completion that have room for a whole draft and its bonus token."""
    tracker = ContextTracker(gap.language, gap.before.encode())
    left = DRAFTED_TOKENS
    for event in engine.stream(drafted_request(gap)):
        if not isinstance(event, RoundEvent):
            continue
        if left > length:
            acceptance.by_row.add(row, event.accepted)
            acceptance.by_context.add(tracker.context().context.value, event.accepted)
        left -= event.accepted + 1
        tracker.advance((event.accepted_text + event.target_text).encode())


def bits_per_byte(model: TorchModel, excerpts: Mapping[str, Sequence[Excerpt]], bar: ProgressBar) -> RateTable:
    """Return bits per byte of the excerpts' bodies, without the part beyond the model's maximum length.

    Each body is tokenized on its own, so every vocabulary predicts the same bytes. Uses slot 0, which must be free.
    """
    model.allocate(1, min(LONGEST, model.spec.max_length))
    table = RateTable()
    for row, found in excerpts.items():
        for excerpt in found:
            table.add(row, *_bits(model, excerpt))
            bar.advance()
    return table


@torch.inference_mode()
def _bits(model: TorchModel, excerpt: Excerpt) -> tuple[float, int]:
    """Return the bits to predict an excerpt's body after its lead, and the body's size in bytes."""
    tokenizer = model.tokenizer
    longest = min(LONGEST, model.spec.max_length)
    lead = [*tokenizer.bos_ids, *tokenizer.encode(excerpt.lead)][-(longest // 2) :]
    body = tokenizer.encode_inside(excerpt.body)[: longest - len(lead)]
    model.admit(0, len(lead) + len(body))
    logits = model.forward([Rows(0, 0, [*lead, *body], keep=len(body) + 1)])[:-1]  # [body, vocabulary]
    labels = torch.tensor(body, dtype=torch.long, device=logits.device)
    nats = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    return float(nats) / math.log(2), len(tokenizer.decode_bytes(body))


@torch.inference_mode()
def ms_per_token(model: TorchModel, text: str) -> float:
    """Return the median milliseconds of a greedy token after up to 256 tokens of text, batch 1, plain. Uses slot 0."""
    model.allocate(1, min(LONGEST, model.spec.max_length))
    ids = [*model.tokenizer.bos_ids, *model.tokenizer.encode(text)]
    ids = ids[: min(TIMED_CONTEXT, model.spec.max_length - WARM_UP - TIMED)]
    model.admit(0, len(ids) + WARM_UP + TIMED)
    times, start = [], 0
    for _ in range(WARM_UP + TIMED):
        started = time.perf_counter()
        ids.append(int(model.forward([Rows(0, start, ids[start:])])[0].argmax()))
        times.append(1000 * (time.perf_counter() - started))
        start = len(ids) - 1
    return statistics.median(times[WARM_UP:])
