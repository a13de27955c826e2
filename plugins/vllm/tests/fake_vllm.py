"""vLLM's side of a proposer, without vLLM: rows of token ids that continue fixed texts, verified greedily.

Rows move as in vLLM's batch: the last one takes the place of one that ends, and any two may be swapped.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

LENGTH = 512


@dataclass(slots=True, eq=False)
class Request:
    """A prompt and the target's own continuation. `chunks`: steps without a token before the prompt is read."""

    prompt: list[int]
    answer: list[int]
    chunks: int = 0
    written: list[int] = field(default_factory=list)
    draft: list[int] = field(default_factory=list)


class FakeVllm:
    """Runs requests, at most `rows` at once, with one proposer. Counts the target's steps, of `seconds` each."""

    def __init__(self, proposer: Any, tokens: int, rows: int = 8, shuffle: bool = False, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self.proposer, self.tokens, self.rows, self.steps = proposer, tokens, rows, 0
        self._shuffle = random.Random(0) if shuffle else None
        self._ids = np.full((rows, LENGTH), 7, np.int32)
        self._lengths = np.zeros(rows, np.int32)

    def run(self, requests: Sequence[Request]) -> None:
        """Run all requests to their end and check that each has its answer."""
        waiting, running = list(requests), list[Request]()
        while waiting or running:
            while waiting and len(running) < self.rows:
                running.append(waiting.pop(0))
            if self._shuffle:
                self._shuffle.shuffle(running)
            self.steps += 1
            time.sleep(self._seconds)
            sampled = [self._sample(request) for request in running]
            for place, request in enumerate(running):
                known = request.prompt + request.written
                self._ids[place, : len(known)] = known
                self._ids[place, len(known) : len(known) + 9] = 3  # old drafts lie behind the ids
                self._lengths[place] = len(known)
            drafts = self.proposer.propose(sampled, self._lengths, self._ids, slot_mappings=None)
            assert len(drafts) == len(running)
            for request, draft in zip(running, drafts, strict=True):
                assert len(draft) <= self.tokens and all(type(number) is int for number in draft)
                request.draft = draft
            for place in reversed(range(len(running))):
                if running[place].written == running[place].answer:
                    last = running.pop()
                    if place < len(running):
                        running[place] = last
        assert all(request.written == request.answer for request in requests)

    @staticmethod
    def _sample(request: Request) -> list[int]:
        """Return the accepted ids and one more, or none while the prompt is read."""
        if request.chunks:
            request.chunks -= 1
            return []
        coming = request.answer[len(request.written) :]
        right = 0
        while right < min(len(request.draft), len(coming) - 1) and request.draft[right] == coming[right]:
            right += 1
        request.written += coming[: right + 1]
        return coming[: right + 1]


def fake_config(folder: str, tokens: int = 8) -> SimpleNamespace:
    """Return the parts of vLLM's configuration that a proposer reads."""
    model = SimpleNamespace(tokenizer=folder, max_model_len=LENGTH)
    return SimpleNamespace(model_config=model, speculative_config=SimpleNamespace(num_speculative_tokens=tokens))
