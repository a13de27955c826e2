"""Draft from the request's `prediction`, such as the old version of a file being edited.

The draft continues the prediction at the position that the text has reached. After an insertion or a deletion, the
position is found again.

Works on bytes, so the prediction needs no tokenizer and no prefill. The cost of a round is bounded for any input:
positions are found with the linear search of `bytes.find` in a window around the last reliable one. Predicted outputs
come from OpenAI's API; drafting from a reference text comes from LLMA (Yang et al. 2023). State is per request and is
dropped with it.
"""

from __future__ import annotations

import collections.abc
from dataclasses import dataclass

from codespec.contract.types import PREDICTION
from codespec.proposers.base import NOTHING, Proposer, budget_bytes
from codespec.proposers.suffix import end_after_spaces
from codespec.sequence import Cap, Draft, Sequence

NEAR, NEAR_MATCH = 128, 3  # window after the last reliable position (bytes), and match length there (characters)
FAR, FAR_MATCH = 64 * 1024, 8  # window on both sides of it (bytes), and match length there (characters)
MOST_MATCH = 48  # maximum of the required match length, in characters
MOST_TAIL = 128  # bytes at the end of the text to search for
SURE = 24  # consecutive matching bytes that make a position reliable


class PredictionProposer(Proposer):
    """Drafts the continuation of the request's prediction from the position that the text has reached."""

    name = PREDICTION

    def __init__(self) -> None:
        self._traces: dict[Sequence, Trace] = {}

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Return each prediction's continuation up to its cap, or an empty draft if the text has diverged."""
        own = [cap.of(self.name) for cap in caps]
        return [
            self._draft(sequence, cap) if cap.tokens and sequence.request.prediction else NOTHING
            for sequence, cap in zip(sequences, own, strict=True)
        ]

    def release(self, sequence: Sequence) -> None:
        """Drop the sequence's state."""
        self._traces.pop(sequence, None)

    def _draft(self, sequence: Sequence, cap: Cap) -> Draft:
        trace = self._traces.get(sequence)
        if trace is None:
            trace = self._traces[sequence] = Trace(sequence.request.prediction.encode())
        trace.follow(sequence.generated, len(sequence.held))
        confidence = trace.confidence
        rest = trace.rest(budget_bytes(sequence, cap))
        if not rest or not cap.goes_on((confidence,)):
            return NOTHING
        text = sequence.held_left + rest
        return Draft(text, self.name, (len(text),), (confidence,))


@dataclass(slots=True)
class Trace:
    """The position of one completion in its prediction `text`.

    `at` is the offset of the expected next byte, or -1 if the text has diverged. `sure` is the last reliable position.
    `read` is the number of bytes of the completion processed, `followed` the number that matched since the position was
    found, and `misses` the number of wrong positions before it.
    """

    text: bytes
    at: int = 0
    sure: int = 0
    read: int = 0
    followed: int = 0
    misses: int = 0

    @property
    def confidence(self) -> float:
        """The acceptance probability of the next token, estimated from this completion's history."""
        return (self.followed + 8) / (self.followed + 9 + 8 * self.misses)

    def rest(self, size: int) -> bytes:
        """Return about the next `size` bytes of the prediction, or none if the position is lost."""
        return end_after_spaces(self.text[self.at : self.at + 2 * size], size) if self.at >= 0 else b""

    def follow(self, generated: bytearray, begin: int) -> None:
        """Process the new bytes of the completion, which begins at byte `begin` of `generated`."""
        new = bytes(generated[begin + self.read :])
        self.read += len(new)
        if self.at >= 0:
            same = common_length(new, self.text[self.at : self.at + len(new)])
            self.at += same
            self.followed += same
            if self.followed >= SURE:
                self.sure, self.misses = self.at, 0
            if same == len(new):
                return
            self.misses += self.followed < SURE
            self.at, self.followed = -1, 0
        if new:
            self._search(bytes(generated[max(begin, len(generated) - MOST_TAIL) :]))

    def _search(self, written: bytes) -> None:
        """Find the position in the prediction after text that matches the end of `written`.

        Searches just after the last reliable position, where a short match suffices, then further on, then before it
        (moved text). Each wrong position doubles the required match length.
        """
        for least, first, last in (
            (NEAR_MATCH, self.sure, self.sure + NEAR),
            (FAR_MATCH, self.sure, self.sure + FAR),
            (FAR_MATCH, max(0, self.sure - FAR), self.sure),
        ):
            tail = tail_of(written, min(MOST_MATCH, least << min(self.misses, 8)))
            found = self.text.find(tail, first, last) if tail else -1
            if found >= 0:
                self.at, self.followed = found + len(tail), len(tail) // 4
                return


def common_length(text: bytes, other: bytes) -> int:
    """Return the length of the common prefix in bytes."""
    if text == other:
        return len(text)
    pairs = enumerate(zip(text, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(text), len(other)))


def tail_of(written: bytes, least: int) -> bytes:
    """Return the shortest suffix with `least` non-whitespace bytes.

    Whitespace does not count, because indents occur everywhere. Returns b"" if there are fewer, unless `written` has
    MOST_TAIL bytes and at least FAR_MATCH of them count.
    """
    count = 0
    for index in range(len(written) - 1, -1, -1):
        count += not written[index : index + 1].isspace()
        if count == least:
            return written[index:]
    return written if len(written) == MOST_TAIL and count >= FAR_MATCH else b""
