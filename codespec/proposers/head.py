"""Draft with a head on the target's hidden states (EAGLE-3 or DFlash).

A head needs no prompt or tokenizer of its own, because it reads the hidden states in the target's cache and drafts
target ids. The head has its own cache, with the same slots as the target's cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from codespec.backends.heads.drafting import DFlashRunner, Eagle3Runner, HeadRunner, Reading
from codespec.proposers.base import Guess, UnitProposer
from codespec.sequence import Cap, Sequence
from codespec.verify.sampling import Sampler


@dataclass(slots=True, eq=False, kw_only=True)
class HeadGuess(Guess):
    """A draft in progress; `reading` is the head's progress in reading the sequence."""

    reading: Reading

    @property
    def unread(self) -> int:
        """Number of positions that the head has not processed."""
        return self.reading.length - self.reading.start


class HeadProposer(UnitProposer[HeadGuess]):
    """Proposer for a head, batched over sequences."""

    def __init__(self, runner: HeadRunner, chunk: int = 256) -> None:
        self.runner = runner
        self.name: str = runner.config.kind
        self.chunk = chunk
        self._spelled = runner.target.token_bytes
        self._sampler = Sampler(self._spelled)

    @torch.inference_mode()
    def commit(self, sequence: Sequence) -> bool:
        """Prefill a chunk of the positions that the target has processed, except for the last, which a draft reads."""
        reading = self.runner.open(sequence.slot, sequence.ids[: sequence.cached + 1])
        if reading.length - reading.start <= 1:
            return False
        self.runner.catch_up([reading], self.chunk)
        return reading.length - reading.start > 1

    def _open(self, sequence: Sequence, cap: Cap) -> HeadGuess | None:
        """Return a new guess, or None during the target's prefill and while held bytes restrict the next tokens."""
        if sequence.num_pending != 1 or sequence.slot < 0 or sequence.held_left:
            return None
        reading = self.runner.open(sequence.slot, sequence.ids)
        most = min(cap.tokens, self.runner.width, self.runner.cache.kept.capacity - reading.length - 1)
        if not reading.length or most <= 0:
            return None
        return HeadGuess(sequence=sequence, cap=cap, most=most, reading=reading)

    @torch.inference_mode()
    def _read(self, guesses: list[HeadGuess]) -> None:
        self.runner.catch_up([guess.reading for guess in guesses], self.chunk)

    @torch.inference_mode()
    def _draft(self, guesses: list[HeadGuess]) -> None:
        rows = self.runner.first([guess.reading for guess in guesses])
        if isinstance(self.runner, DFlashRunner):  # one forward pass drafts all tokens
            for guess, own in zip(guesses, rows, strict=True):
                for row in own:
                    if not self._extend(guess, row):
                        break
            return
        assert isinstance(self.runner, Eagle3Runner)  # each forward pass drafts one token per sequence
        steps = 1
        while guesses := [guess for guess, row in zip(guesses, rows, strict=True) if self._extend(guess, row)]:
            tokens = [guess.ids[-1] for guess in guesses]
            rows = self.runner.go_on([guess.reading for guess in guesses], tokens, steps)
            steps += 1

    def _extend(self, guess: HeadGuess, logits: Tensor) -> bool:
        """Append the token chosen from logits [draft vocabulary]. Return whether the draft continues."""
        request = guess.sequence.request
        probabilities = logits.float().softmax(0)
        plain = request.rule == "rejection" or request.temperature == 0.0
        if plain and request.repetition_penalty == 1.0:
            at = int(probabilities.argmax())
            token = int(self.runner.ids[at])
        else:
            whole = torch.full((len(self._spelled),), -torch.inf)
            whole[self.runner.ids.cpu()] = logits.float().cpu()
            (token,) = self._sampler.choose(whole[None], request, guess.sequence.choice, [guess.position()])
            at = int((self.runner.ids == token).nonzero()[0, 0])
        return guess.add(token, self._spelled[token], float(probabilities[at]))
