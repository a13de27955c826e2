"""How transformers' `generate` is watched without changing it: its rounds, its forwards, its choices.

Knows transformers' hooks; knows no model.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LogitsProcessor, StoppingCriteria


class Meter(StoppingCriteria):
    """Told of every round: notes when the first one ended and counts the others. Never stops anything."""

    def __init__(self, clocks: Mapping[str, Clock]) -> None:
        self.first = 0.0
        self.length = 0  # ids behind the first round
        self.rounds = 0
        self._clocks = clocks

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        """No sequence is done."""
        if self.length:
            self.rounds += 1
        else:
            self.first, self.length = time_when_done(input_ids.device), input_ids.shape[1]
            for clock in self._clocks.values():
                clock.seconds, clock.rows = 0.0, 0
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class Clock:
    """Seconds in a network's forwards, and the rows of its sequences. Beside a GPU those of launching them: to wait for
    the device in every forward would slow what is watched.
    """

    def __init__(self, network: nn.Module) -> None:
        self.seconds, self.rows = 0.0, 0
        self._began = 0.0
        self._hooks = [
            network.register_forward_pre_hook(self._begin, with_kwargs=True),
            network.register_forward_hook(self._end),
        ]

    def close(self) -> None:
        """Listens no more."""
        for hook in self._hooks:
            hook.remove()

    def _begin(self, network: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        ids = named["input_ids"] if "input_ids" in named else given[0]
        self.rows += ids.shape[1]
        self._began = time.perf_counter()

    def _end(self, *_: Any) -> None:
        self.seconds += time.perf_counter() - self._began


def time_when_done(device: torch.device) -> float:
    """The time at which a device has done all that it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class OnlyReal(LogitsProcessor):
    """Leaves out the ids that only pad an enlarged model's vocabulary."""

    def __init__(self, choosable: int) -> None:
        self._choosable = choosable

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The scores, minus infinity behind the vocabulary."""
        scores[..., self._choosable :] = -torch.inf
        return scores
