"""Draft from the request's `prediction`, such as the old version of a file being edited.

The draft continues the prediction at the position that the text has reached. After a change, that position is the end
of the cheapest alignment of the words written since then with the prediction, in which leaving out a word of the
prediction costs less than writing a word that it doesn't have. If the text replaced a name, it is replaced in the rest
of the prediction, too. The stop string that ended the last text follows the prediction. An end token needs no draft:
the target chooses it in the round that accepts the last draft.

Works on bytes, so the prediction needs no tokenizer and no prefill. The cost of a round is bounded for any input: an
alignment covers a window around the change. Predicted outputs come from OpenAI's API; drafting from a reference text
comes from LLMA (Yang et al. 2023). State is per request and is dropped with it, except for the last end of each scope.
"""

from __future__ import annotations

import collections.abc
import re
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codespec.api.types import PREDICTION, FinishReason
from codespec.proposers.base import NOTHING, Proposer, budget_bytes
from codespec.proposers.suffix import end_after_spaces
from codespec.sequence import Cap, Draft, Sequence

FAR = 32 * 1024  # bytes on both sides of a change that are aligned
# Costs of a word that is not in the prediction, of leaving out one of its words, and of going on anywhere else; chosen
# on recorded answers of next-edit models (lab/LOG.md).
ADDED, LEFT_OUT, MOVED = 1.0, 0.15, 2.0
SURE = 24  # consecutive matching bytes that make a position reliable
FORGIVEN = (1, 8)  # wrong positions before and after a reliable one; then each doubles the required match
MAX_MATCH = 48  # maximum of that match, in bytes
MAX_PLACES = 16  # cheapest places that are compared with an incomplete word
REPLACED, MAX_NAME = 24, 64  # bytes that must match after a replaced name, and its maximum length
MAX_SCOPES = 64  # scopes whose last end is kept
_NAME = re.compile(rb"[\w\x80-\xff]+")
_WORD = re.compile(rb"[\w\x80-\xff]+|\n[ \t]*|[ \t]+|[^\w\x80-\xff]")
_LAST_WORD = re.compile(rb"(?:[\w\x80-\xff]+|\n?[ \t]*)\Z")


class PredictionProposer(Proposer):
    """Drafts the continuation of the request's prediction from the position that the text has reached."""

    name = PREDICTION

    def __init__(self) -> None:
        self._traces: dict[Sequence, Trace] = {}
        self._ends: OrderedDict[str, bytes] = OrderedDict()  # the stop strings that ended the last texts, by scope

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Return each prediction's continuation up to its cap, or an empty draft if the text has diverged."""
        return [
            self._draft(sequence, cap) if sequence.request.prediction else NOTHING
            for sequence, cap in zip(sequences, caps, strict=True)
        ]

    def release(self, sequence: Sequence, reason: FinishReason | None) -> None:
        """Drop a finished sequence's state. Keep the stop string that ended it: it may end others of its scope too."""
        if reason is None:
            return
        self._traces.pop(sequence, None)
        if sequence.request.prediction and sequence.cut is not None and sequence.ending is None:
            stopped = sequence.ids[-1] not in sequence.eos_ids
            self._ends[sequence.request.scope] = bytes(sequence.generated[sequence.cut :]) if stopped else b""
            self._ends.move_to_end(sequence.request.scope)
            if len(self._ends) > MAX_SCOPES:
                self._ends.popitem(last=False)

    def _draft(self, sequence: Sequence, cap: Cap) -> Draft:
        trace = self._traces.get(sequence)
        if trace is None:
            trace = self._traces[sequence] = self._begin(sequence)
        trace.follow(sequence.generated, len(sequence.held))
        confidence = trace.confidence
        rest = trace.rest(2 * budget_bytes(sequence, cap))
        if not rest or not cap.goes_on((confidence,)):
            return NOTHING
        text = sequence.held_left + rest
        return Draft(text, self.name, (len(text),), (confidence,))

    def _begin(self, sequence: Sequence) -> Trace:
        text = sequence.request.prediction.encode()
        end = b"" if sequence.ending is not None else self._ends.get(sequence.request.scope, b"")
        shared = next(n for n in range(len(end), -1, -1) if text.endswith(end[:n]))
        return Trace(text + end[shared:])


@dataclass(slots=True)
class Trace:
    """The position of one completion in its prediction `text`.

    `at` is the offset of the expected next byte, or -1 if the text has diverged. `read` is the number of bytes of the
    completion processed, `followed` the number of matching bytes before `at`, and `misses` the number of wrong
    positions since the last reliable one; `reliable` is whether there was one. `alignment` is that of the words since a
    change, until the position is reliable again. `changed` are the offsets in `text` and in the completion at which
    this change began.
    """

    text: bytes
    at: int = 0
    read: int = 0
    followed: int = 0
    misses: int = 0
    reliable: bool = False
    alignment: Alignment | None = None
    changed: tuple[int, int] | None = None

    @property
    def confidence(self) -> float:
        """The acceptance probability of the next token, estimated from this completion's history."""
        doubts = self.misses + (self.alignment is not None)
        return (self.followed + 8) / (self.followed + 9 + 8 * doubts)

    def rest(self, size: int) -> bytes:
        """Return about the next `size` bytes of the prediction, or none if the position is lost."""
        return end_after_spaces(self.text[self.at : self.at + 2 * size], size) if self.at >= 0 else b""

    def follow(self, generated: bytearray, begin: int) -> None:
        """Process the new bytes of the completion, which begins at byte `begin` of `generated`."""
        new = bytes(generated[begin + self.read :])
        self.read += len(new)
        if self.alignment is not None:
            self.alignment.write(new)
        left = self._advance(new)
        if self._rename(generated, left):
            left = self._advance(new[len(new) - left :])
        if left:
            self.misses += self.at >= 0 and self.followed < SURE
            if self.alignment is None:
                self.alignment = self._align(generated, left)
            self._search(bytes(generated[max(begin, len(generated) - MAX_MATCH) :]))
            self._rename(generated, 0)

    def _advance(self, new: bytes) -> int:
        """Advance the position by the new bytes that match. Return how many are left."""
        if self.at < 0:
            return len(new)
        same = common_length(new, self.text[self.at : self.at + len(new)])
        self.at += same
        self.followed += same
        if self.followed >= SURE:
            self.misses, self.alignment, self.reliable = 0, None, True
        return len(new) - same

    def _align(self, generated: bytearray, size: int) -> Alignment:
        """Begin an alignment. The last `size` bytes of the completion differ, and so may the word before them."""
        first = len(generated) - size
        found = _LAST_WORD.search(generated, max(0, first - MAX_NAME), first)
        back = len(found[0]) if found and self.text.endswith(found[0], 0, self.at) else 0
        self.changed = (self.at - back, first - back)
        alignment = Alignment(self.text, self.at - back)
        alignment.write(bytes(generated[first - back :]))
        return alignment

    def _search(self, written: bytes) -> None:
        """Go on at the end of the cheapest alignment if enough bytes before it match the end of the text."""
        assert self.alignment is not None
        at = self.alignment.position()
        self.followed = common_length(written[::-1], self.text[max(0, at - MAX_MATCH) : at][::-1])
        least = min(MAX_MATCH, 1 << max(0, self.misses - FORGIVEN[self.reliable]))
        self.at = at if self.followed >= least else -1

    def _rename(self, generated: bytearray, left: int) -> bool:
        """Rename in the rest of the prediction what the last change renamed, once the text goes on as before.

        The last `left` bytes of the completion are not part of it. Returns whether something was renamed.
        """
        if self.changed is None or self.at < 0:
            return False
        old_begin, new_begin, end = *self.changed, len(generated) - left
        run = min(self.followed, self.at - old_begin, end - new_begin)
        if run < REPLACED:
            return False
        self.changed = None
        while run and (_inside_name(self.text, self.at - run) or _inside_name(generated, end - run)):
            run -= 1  # both names end alike
        old = self.text[old_begin : self.at - run].strip()
        new = bytes(generated[new_begin : end - run]).strip()
        if not (_NAME.fullmatch(old) and _NAME.fullmatch(new) and max(len(old), len(new)) <= MAX_NAME):
            return False
        self.text = self.text[: self.at] + _with_name(self.text[self.at :], old, new)
        self.alignment = None
        return True


class Alignment:
    """The cheapest alignment of the words of a changed text with a prediction, from offset `begin` of `text`.

    `_costs[i]` is the cost of having written the complete words so far instead of the first i words of the window.
    """

    def __init__(self, text: bytes, begin: int) -> None:
        first = max(0, begin - FAR)
        before, after = _WORD.findall(text, first, begin), _WORD.findall(text, begin, begin + FAR)
        words, numbers = before + after, dict[bytes, int]()
        self._text, self._tail, self._numbers = text, b"", numbers
        self._words: NDArray[np.int32] = np.array([numbers.setdefault(w, len(numbers)) for w in words], np.int32)
        self._offsets = np.cumsum([first, *map(len, words)])
        costs = np.full(len(words) + 1, np.inf)
        costs[len(before)] = 0.0
        self._costs = _with_jumps(costs)

    def write(self, new: bytes) -> None:
        """Append bytes, at least one, to the changed text."""
        *words, self._tail = _WORD.findall(self._tail + new)
        for word in words:
            same = np.flatnonzero(self._words == self._numbers.get(word, -1))
            costs = self._costs + ADDED
            costs[same + 1] = np.minimum(costs[same + 1], self._costs[same])
            self._costs = _with_jumps(costs)

    def position(self) -> int:
        """Return the offset of the likely next byte. The last word may be incomplete."""
        best = int(self._costs.argmin())
        near = np.flatnonzero(self._costs < self._costs[best] + ADDED)
        for place in near[np.argsort(self._costs[near], kind="stable")][:MAX_PLACES]:
            offset = int(self._offsets[place])
            if self._text.startswith(self._tail, offset):
                return offset + len(self._tail)
        return int(self._offsets[best])


def _with_jumps(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the costs if words may be left out, or if the text may go on anywhere else."""
    place = np.arange(len(costs)) * LEFT_OUT
    left_out = np.minimum.accumulate(costs - place) + place
    result: NDArray[np.float64] = np.minimum(left_out, costs.min() + MOVED)
    return result


def _inside_name(text: bytes | bytearray, offset: int) -> bool:
    return offset > 0 and _NAME.fullmatch(text, offset - 1, offset + 1) is not None


def _with_name(text: bytes, old: bytes, new: bytes) -> bytes:
    return re.sub(rb"(?<![\w\x80-\xff])%s(?![\w\x80-\xff])" % re.escape(old), new, text)


def common_length(text: bytes, other: bytes) -> int:
    """Return the length of the common prefix in bytes."""
    if text == other:
        return len(text)
    pairs = enumerate(zip(text, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(text), len(other)))
