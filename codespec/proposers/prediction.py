"""Guesses that the text is what its client expects: a request may bring a `prediction`, such as the old state of a file
that is edited. The guess goes on where the text stands in it, and finds its place again behind an insertion or a
deletion.

Works on bytes, so the prediction has no tokenizer and no prefill. What a round may cost is bounded, whatever the client
sends: places are searched with the linear search of `bytes.find` in a window around the last sure one. Predicted
outputs are an idea of OpenAI's API; to draft from a reference text is LLMA's (Yang et al. 2023). Knows one request's
own text; keeps nothing of it longer than the request lives.
"""

from __future__ import annotations

import collections.abc
from dataclasses import dataclass

from codespec.proposers.base import NOTHING, Proposer, budget_bytes
from codespec.proposers.suffix import end_after_spaces
from codespec.sequence import Cap, Draft, Sequence
from codespec.types import PREDICTION

NEAR, NEAR_MATCH = 128, 3  # bytes behind the last sure place, and characters that must match there
FAR, FAR_MATCH = 64 * 1024, 8  # bytes on both sides of it, and characters that must match anywhere
MOST_MATCH = 48  # characters that are always enough
MOST_TAIL = 128  # bytes of the text's end that are looked for
SURE = 24  # bytes in a row that make a place a sure one


class PredictionProposer(Proposer):
    """Drafts what stands in the request's prediction behind the place that the text has reached."""

    name = PREDICTION

    def __init__(self) -> None:
        self._traces: dict[Sequence, Trace] = {}

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """What follows in each prediction, up to each cap; a text that has left its prediction gets none."""
        own = [cap.of(self.name) for cap in caps]
        return [
            self._draft(sequence, cap) if cap.tokens and sequence.request.prediction else NOTHING
            for sequence, cap in zip(sequences, own, strict=True)
        ]

    def release(self, sequence: Sequence) -> None:
        """Forgets where the text stood."""
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
    """Where one completion stands in its prediction `text`: its next byte is expected at `at` (-1: it has left the
    prediction, which it followed up to `sure`). `read` bytes of the completion were seen; `followed` of them came as
    expected since it found its place, after `misses` places that were wrong.
    """

    text: bytes
    at: int = 0
    sure: int = 0
    read: int = 0
    followed: int = 0
    misses: int = 0

    @property
    def confidence(self) -> float:
        """The chance of the next token, as far as this text's own past says it."""
        return (self.followed + 8) / (self.followed + 9 + 8 * self.misses)

    def rest(self, size: int) -> bytes:
        """About the next `size` bytes of the prediction; none where the place is lost."""
        return end_after_spaces(self.text[self.at : self.at + 2 * size], size) if self.at >= 0 else b""

    def follow(self, generated: bytearray, begin: int) -> None:
        """Reads what was written since; the completion begins at byte `begin` of `generated`."""
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
        """Looks for the place behind which the prediction reads like the end of what was `written`: first close behind
        the last sure place, where little is enough, then further on, then before it (a text that was moved). Each place
        that was wrong doubles what must match.
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


def common_length(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    if one == other:
        return len(one)
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def tail_of(written: bytes, least: int) -> bytes:
    """The shortest end of a text that has so many bytes beside white space, because an indent occurs everywhere; none
    if there are not so many, unless MOST_TAIL bytes hold no more.
    """
    count = 0
    for index in range(len(written) - 1, -1, -1):
        count += not written[index : index + 1].isspace()
        if count == least:
            return written[index:]
    return written if len(written) == MOST_TAIL and count >= FAR_MATCH else b""
