"""Draft with a head on the target's hidden states (EAGLE-3 or DFlash).

The head reads the hidden states in the target's cache, so it needs no prompt or tokenizer of its own, and its drafts
are target ids. Its state follows the target's slots (`HeadCache`).
"""

from __future__ import annotations

import collections.abc
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from codespec.api.types import Owner
from codespec.backends.heads.drafting import DFlashRunner, Eagle3Runner, HeadRunner, Reading
from codespec.proposers.base import NOTHING, Proposer
from codespec.sequence import Cap, Draft, Sequence
from codespec.verify.sampling import Position, Sampler


@dataclass(slots=True, eq=False)
class HeadGuess:
    """A draft in progress."""

    place: int  # index in the batch of `propose`
    sequence: Sequence
    reading: Reading
    cap: Cap
    most: int  # maximum tokens
    ids: list[int] = field(default_factory=list)
    drafted: bytearray = field(default_factory=bytearray)
    ends: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)

    def add(self, token: int, spelled: bytes, confidence: float) -> bool:
        """Append a token. Return whether the draft continues."""
        if not spelled:
            return False
        self.ids.append(token)
        self.drafted += spelled
        self.ends.append(len(self.drafted))
        self.confidences.append(confidence)
        return len(self.ids) < self.most and self.cap.goes_on(self.confidences)

    def draft(self, source: str) -> Draft:
        """Return the finished draft."""
        if not self.ids:
            return NOTHING
        return Draft(bytes(self.drafted), source, tuple(self.ends), tuple(self.confidences), tuple(self.ids))


class HeadProposer(Proposer):
    """Proposer for a head of either kind, batched over sequences.

    `chunk` is the number of positions prefilled at a time if other sequences are waiting.
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
        """Return its own name: the head reads the target's slots."""
        return (self.name,)

    @torch.inference_mode()
    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Draft for all sequences with a nonzero cap of which the target has processed all but the last token."""
        drafts = [NOTHING] * len(sequences)
        own = [cap.of(self.name) for cap in caps]
        opened = [self._open(i, s, cap) for i, (s, cap) in enumerate(zip(sequences, own, strict=True)) if cap.tokens]
        guesses = self._ready([guess for guess in opened if guess is not None], alone=len(sequences) == 1)
        if guesses:
            self._draft(guesses)
        for guess in guesses:
            drafts[guess.place] = guess.draft(self.name)
        return drafts

    @torch.inference_mode()
    def read(self, sequence: Sequence) -> bool:
        """Prefill a chunk of what the target has processed.

        Excludes the last position, whose output only a draft needs.
        """
        reading = self.runner.open(sequence.slot, sequence.ids[: sequence.cached + 1])
        if reading.length - reading.start <= 1:
            return False
        self.runner.catch_up([reading], self.chunk)
        return reading.length - reading.start > 1

    def _draft(self, guesses: list[HeadGuess]) -> None:
        """Append tokens to every guess."""
        raise NotImplementedError

    def _open(self, place: int, sequence: Sequence, cap: Cap) -> HeadGuess | None:
        """Return a new guess, or None if it can't draft here.

        That is the case during the target's prefill, and while held bytes restrict the next tokens.
        """
        if sequence.num_pending != 1 or sequence.slot < 0 or sequence.held_left:
            return None
        reading = self.runner.open(sequence.slot, sequence.ids)
        most = min(cap.tokens, self.runner.width, self.runner.cache.kept.capacity - reading.length - 1)
        return HeadGuess(place, sequence, reading, cap, most) if reading.length and most > 0 else None

    def _ready(self, guesses: list[HeadGuess], *, alone: bool) -> list[HeadGuess]:
        """Return the guesses that can be drafted now.

        If there are other sequences, one with more unread positions than a chunk first prefills a chunk per round.
        """
        late = [] if alone else [g for g in guesses if g.reading.length - g.reading.start > self.chunk]
        if late:
            self.runner.catch_up([guess.reading for guess in late], self.chunk)
        return [guess for guess in guesses if guess not in late]

    def _choose(self, guess: HeadGuess, logits: Tensor) -> tuple[int, float]:
        """Return the next token of a guess and its probability, from logits [draft vocabulary].

        It is the argmax, or the choice under the target's noise if sampling.
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

    def _position(self, guess: HeadGuess) -> Position:
        sequence = guess.sequence
        offset = len(sequence.generated) + len(guess.drafted)
        silent = sequence.silent if not guess.drafted else 0
        penalized = sequence.request.repetition_penalty != 1.0
        return Position(offset, silent, [*sequence.ids, *guess.ids] if penalized else ())


class Eagle3Proposer(HeadProposer):
    """An EAGLE-3 head: each forward of its one layer drafts one token per sequence."""

    runner: Eagle3Runner

    def _draft(self, guesses: list[HeadGuess]) -> None:
        logits = self.runner.first([guess.reading for guess in guesses])
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
            logits = self.runner.go_on([guess.reading for guess in going], tokens, steps)
            steps += 1


class DFlashProposer(HeadProposer):
    """A DFlash head: one forward drafts all tokens."""

    runner: DFlashRunner

    def _draft(self, guesses: list[HeadGuess]) -> None:
        for guess, rows in zip(guesses, self.runner.first([guess.reading for guess in guesses]), strict=True):
            for row in rows:
                token, chance = self._choose(guess, row)
                if not guess.add(token, self._spelled[token], chance):
                    break


def make_proposer(runner: HeadRunner, chunk: int = 256) -> HeadProposer:
    """Return the proposer for a head's kind."""
    if isinstance(runner, Eagle3Runner):
        return Eagle3Proposer(runner, chunk)
    assert isinstance(runner, DFlashRunner)
    return DFlashProposer(runner, chunk)
