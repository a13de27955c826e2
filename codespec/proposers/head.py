"""Draft with a head on the target's hidden states (EAGLE-3 or DFlash).

The head reads the hidden states in the target's cache, so it needs no prompt or tokenizer of its own, and its drafts
are target ids. Its state follows the target's slots (`HeadCache`).
"""

from __future__ import annotations

import collections.abc
from dataclasses import dataclass

import torch
from torch import Tensor

from codespec.backends.heads.drafting import DFlashRunner, Eagle3Runner, HeadRunner, Reading
from codespec.proposers.base import Guess, UnitProposer
from codespec.sequence import Cap, Draft, Sequence
from codespec.verify.sampling import Sampler


@dataclass(slots=True, eq=False, kw_only=True)
class HeadGuess(Guess):
    """A draft in progress."""

    reading: Reading

    @property
    def unread(self) -> int:
        """Positions that the head has not processed."""
        return self.reading.length - self.reading.start


class HeadProposer(UnitProposer[HeadGuess]):
    """Proposer for a head of either kind, batched over sequences."""

    def __init__(self, runner: HeadRunner, chunk: int = 256) -> None:
        self.runner = runner
        self.name: str = runner.config.kind
        self.chunk = chunk
        self._spelled = runner.target.token_bytes
        self._sampler = Sampler(self._spelled)

    @torch.inference_mode()
    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Draft for all sequences of which the target has processed all but the last token."""
        return super().propose(sequences, caps)

    @torch.inference_mode()
    def commit(self, sequence: Sequence) -> bool:
        """Prefill a chunk of what the target has processed.

        Excludes the last position, whose output only a draft needs.
        """
        reading = self.runner.open(sequence.slot, sequence.ids[: sequence.cached + 1])
        if reading.length - reading.start <= 1:
            return False
        self.runner.catch_up([reading], self.chunk)
        return reading.length - reading.start > 1

    def _open(self, sequence: Sequence, cap: Cap) -> HeadGuess | None:
        """Return a new guess, or None if it can't draft here.

        That is the case during the target's prefill, and while held bytes restrict the next tokens.
        """
        if sequence.num_pending != 1 or sequence.slot < 0 or sequence.held_left:
            return None
        reading = self.runner.open(sequence.slot, sequence.ids)
        most = min(cap.tokens, self.runner.width, self.runner.cache.kept.capacity - reading.length - 1)
        if not reading.length or most <= 0:
            return None
        return HeadGuess(sequence=sequence, cap=cap, most=most, reading=reading)

    def _read(self, guesses: list[HeadGuess]) -> None:
        self.runner.catch_up([guess.reading for guess in guesses], self.chunk)

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
        (token,) = self._sampler.choose(whole[None], request, guess.sequence.choice, [guess.position()])
        at = int((self.runner.ids == token).nonzero()[0, 0])
        return token, float(probabilities[at])


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
