"""A head that guesses: it reads the hidden states that the target leaves in its cache, so it needs no prompt of its own
and no other tokenizer. Its drafts are ids of the target.

What it remembers follows the target's slots (`models.heads.cache`). Knows sequences and caps; knows neither layers nor
how the target checks.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from codespec.models.heads.drafting import DFlashRunner, Eagle3Runner, HeadRunner, Reading
from codespec.proposers.base import NOTHING, Proposer
from codespec.sequence import Cap, Draft, Sequence
from codespec.types import Owner
from codespec.verify.sampling import Position, Sampler


@dataclass(slots=True, eq=False)
class Guess:
    """One draft in the making."""

    place: int  # index in the batch that asked
    sequence: Sequence
    reading: Reading
    cap: Cap
    most: int  # tokens
    ids: list[int] = field(default_factory=list)
    drafted: bytearray = field(default_factory=bytearray)
    ends: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)

    def add(self, token: int, spelled: bytes, confidence: float) -> bool:
        """Adds a token; says whether the draft goes on."""
        if not spelled:
            return False
        self.ids.append(token)
        self.drafted += spelled
        self.ends.append(len(self.drafted))
        self.confidences.append(confidence)
        return len(self.ids) < self.most and self.cap.goes_on(self.confidences)

    def draft(self, source: str) -> Draft:
        """The finished draft."""
        if not self.ids:
            return NOTHING
        return Draft(bytes(self.drafted), source, tuple(self.ends), tuple(self.confidences), tuple(self.ids))


class HeadProposer(Proposer):
    """A head of either kind, batched over sequences; `chunk` is how many positions it reads at a time where others
    would have to wait.
    """

    def __init__(self, runner: HeadRunner, chunk: int = 256) -> None:
        self.runner = runner
        self.name: str = runner.config.kind
        self.chunk = chunk
        self._spelled = runner.target.token_bytes
        self._sampler = Sampler(self._spelled)

    @property
    def heads(self) -> Mapping[str, HeadRunner]:
        """The head."""
        return {self.name: self.runner}

    def warm_for(self, owner: Owner) -> tuple[str, ...]:
        """Itself: it reads what the target's slots hold."""
        return (self.name,)

    @torch.inference_mode()
    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Drafts for all sequences with a cap whose text the target has read but for its last token."""
        drafts = [NOTHING] * len(sequences)
        opened = [self._open(i, s, cap) for i, (s, cap) in enumerate(zip(sequences, caps, strict=True)) if cap.tokens]
        guesses = self._ready([guess for guess in opened if guess is not None], alone=len(sequences) == 1)
        if guesses:
            self._draft(guesses)
        for guess in guesses:
            drafts[guess.place] = guess.draft(self.name)
        return drafts

    @torch.inference_mode()
    def read(self, sequence: Sequence) -> bool:
        """Reads a chunk of what the target has read, but for the last position, whose row only a draft needs."""
        reading = self.runner.open(sequence.slot, sequence.ids[: sequence.cached + 1])
        if reading.length - reading.start <= 1:
            return False
        self.runner.catch_up([reading], self.chunk)
        return reading.length - reading.start > 1

    def _draft(self, guesses: list[Guess]) -> None:
        """Adds tokens to every guess."""
        raise NotImplementedError

    def _open(self, place: int, sequence: Sequence, cap: Cap) -> Guess | None:
        """None where it can't guess: the target has not read the text, or the next tokens are not free."""
        if sequence.num_pending != 1 or sequence.slot < 0 or sequence.held_left:
            return None
        reading = self.runner.open(sequence.slot, sequence.ids)
        most = min(cap.tokens, self.runner.width, self.runner.cache.capacity - reading.length - 1)
        return Guess(place, sequence, reading, cap, most) if reading.length and most > 0 else None

    def _ready(self, guesses: list[Guess], *, alone: bool) -> list[Guess]:
        """The guesses that can be drafted now. Who has much to read does that first, a chunk a round where others
        would have to wait.
        """
        late = [] if alone else [g for g in guesses if g.reading.length - g.reading.start > self.chunk]
        if late:
            self.runner.catch_up([guess.reading for guess in late], self.chunk)
        return [guess for guess in guesses if guess not in late]

    def _choose(self, guess: Guess, logits: Tensor) -> tuple[int, float]:
        """The next token of a guess from logits [draft vocabulary], and its chance: the best, or under sampling what
        the target's noise favours.
        """
        request = guess.sequence.request
        probabilities = logits.float().softmax(0)
        plain = request.rule == "rejection" or request.temperature == 0.0
        if plain and request.repetition_penalty == 1.0:
            best = int(probabilities.argmax())
            return int(self.runner.ids[best]), float(probabilities[best])
        whole = torch.full((len(self._spelled),), -torch.inf)
        whole[self.runner.ids.cpu()] = logits.float().cpu()
        (token,) = self._sampler.choose(whole[None], request, guess.sequence.choice, [self._position(guess)])
        at = int((self.runner.ids == token).nonzero()[0, 0])
        return token, float(probabilities[at])

    def _position(self, guess: Guess) -> Position:
        sequence = guess.sequence
        offset = len(sequence.generated) + len(guess.drafted)
        silent = sequence.silent if not guess.drafted else 0
        penalized = sequence.request.repetition_penalty != 1.0
        return Position(offset, silent, [*sequence.ids, *guess.ids] if penalized else ())


class Eagle3Proposer(HeadProposer):
    """An EAGLE-3 head: one token of each draft a forward of its one layer."""

    def __init__(self, runner: Eagle3Runner, chunk: int = 256) -> None:
        super().__init__(runner, chunk)
        self._runner = runner

    def _draft(self, guesses: list[Guess]) -> None:
        logits = self._runner.begin([guess.reading for guess in guesses])
        going, steps = guesses, 1
        while True:
            chosen = [self._choose(guess, row) for guess, row in zip(going, logits, strict=True)]
            going = [
                guess
                for guess, (token, chance) in zip(going, chosen, strict=True)
                if guess.add(token, self._spelled[token], chance)
            ]
            if not going:
                return
            tokens = [guess.ids[-1] for guess in going]
            logits = self._runner.go_on([guess.reading for guess in going], tokens, steps)
            steps += 1


class DFlashProposer(HeadProposer):
    """A DFlash head: all tokens of a draft in one forward."""

    def __init__(self, runner: DFlashRunner, chunk: int = 256) -> None:
        super().__init__(runner, chunk)
        self._runner = runner

    def _draft(self, guesses: list[Guess]) -> None:
        for guess, rows in zip(guesses, self._runner.fill([guess.reading for guess in guesses]), strict=True):
            for row in rows:
                token, chance = self._choose(guess, row)
                if not guess.add(token, self._spelled[token], chance):
                    break


def make_proposer(runner: HeadRunner, chunk: int = 256) -> HeadProposer:
    """The proposer of a head's kind."""
    if isinstance(runner, Eagle3Runner):
        return Eagle3Proposer(runner, chunk)
    assert isinstance(runner, DFlashRunner)
    return DFlashProposer(runner, chunk)
