"""The interface of a proposer, and the common part of proposers that draft token by token."""

from __future__ import annotations

import collections.abc
import math
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from codespec.api.types import FinishReason
from codespec.sequence import Cap, Draft, Sequence
from codespec.verify.sampling import Position, Row

NOTHING = Draft()


class Proposer:
    """A source of drafts: a lookup, a small model or a head. A subclass must define only `name` and `propose`."""

    name: str  # in drafts, caps and statistics

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Return a draft, possibly empty, for each sequence. Caps are at least 1 token."""
        raise NotImplementedError

    def commit(self, sequence: Sequence) -> bool:
        """Prefill a chunk of the committed text ahead of the next draft. Return whether unread text remains."""
        return False

    def release(self, sequence: Sequence, reason: FinishReason | None) -> None:
        """Free the resources of a sequence that has finished, or that is paused if `reason` is None."""


@dataclass(slots=True, eq=False, kw_only=True)
class Guess:
    """A draft in progress."""

    sequence: Sequence
    cap: Cap
    most: int  # maximum number of the proposer's tokens
    budget: float = math.inf  # number of bytes at which the draft ends
    held: bytes = b""  # known bytes that precede the drafted bytes
    as_ids: bool = True  # whether `ids` are in the target's vocabulary
    drafted: bytearray = field(default_factory=bytearray)
    ids: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    probabilities: list[Row] = field(default_factory=list)

    @property
    def unread(self) -> int:
        """Number of committed tokens that the proposer's model has not processed."""
        raise NotImplementedError

    @property
    def before(self) -> list[int]:
        """All ids before the next drafted token, in the proposer's vocabulary."""
        return [*self.sequence.ids, *self.ids]

    def position(self) -> Position:
        """Return the position of the next drafted token."""
        sequence, penalized = self.sequence, self.sequence.request.repetition_penalty != 1.0
        offset = len(sequence.generated) + len(self.held) + len(self.drafted)
        silent = sequence.silent if offset == len(sequence.generated) else 0
        return Position(offset, silent, self.before if penalized else ())

    def add(self, unit: int, spelled: bytes, confidence: float) -> bool:
        """Append a drafted token, unless the token has no bytes. Return whether the draft continues."""
        if not spelled:
            return False
        self.drafted += spelled
        self.ids.append(unit)
        self.ends.append(len(self.held) + len(self.drafted))
        self.confidences.append(confidence)
        if len(self.drafted) >= self.budget or len(self.ids) >= self.most:
            return False
        return self.cap.goes_on(self.confidences)  # an unsure last token is retained: rejecting it costs one row

    def draft(self, source: str) -> Draft:
        """Return the finished draft."""
        if not self.ids:
            return NOTHING
        ids = tuple(self.ids) if self.as_ids else None
        text, probabilities = self.held + bytes(self.drafted), tuple(self.probabilities)
        return Draft(text, source, tuple(self.ends), tuple(self.confidences), ids, probabilities)


OwnGuess = TypeVar("OwnGuess", bound=Guess)


class UnitProposer(Proposer, Generic[OwnGuess]):
    """A proposer that drafts token by token, for all sequences of a batch together."""

    chunk: int  # maximum number of tokens that a round prefills for each of several sequences

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Draft for all sequences; in a batch, a sequence with more than a chunk of unread text is only prefilled."""
        guesses = [self._open(sequence, cap) for sequence, cap in zip(sequences, caps, strict=True)]
        opened = [guess for guess in guesses if guess is not None]
        late = [guess for guess in opened if guess.unread > self.chunk] if len(sequences) > 1 else []
        if late:
            self._read(late)
        going = [guess for guess in opened if guess not in late]
        if going:
            self._draft(going)
        return [guess.draft(self.name) if guess is not None else NOTHING for guess in guesses]

    def _open(self, sequence: Sequence, cap: Cap) -> OwnGuess | None:
        """Return a new guess, or None if the proposer can't draft for this sequence."""
        raise NotImplementedError

    def _read(self, guesses: list[OwnGuess]) -> None:
        """Prefill a chunk of the unread text of each guess."""
        raise NotImplementedError

    def _draft(self, guesses: list[OwnGuess]) -> None:
        """Add drafted tokens to every guess."""
        raise NotImplementedError
