"""The memory kept by piecewise graphs equals the plan.

Graphs record nothing here. The test counts the memory alive after all buckets are captured, minus the memory that is
also alive with whole-step capture.
"""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from codespec.models import attention
from codespec.models.cuda import graphs
from codespec.models.memory_plan import ROUNDED, Need, parts_claim
from tests.tiny_models import tiny_model

GRAPH_ROWS, CAPACITY = 24, 1024
MORE = {"llama": 1.1, "phi3": 1.1, "gemma2": 1.7, "gpt2": 1.7}  # planned bytes relative to kept bytes


class Ledger(TorchDispatchMode):
    """Every allocation made inside, and the bytes of it that a GPU could not reuse."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self._made[StorageWeakRef(storage)] = storage.nbytes()
        return made

    @property
    def alive(self) -> int:
        """Return the bytes alive, each allocation rounded up as by torch."""
        gc.collect()
        held = [nbytes for memory, nbytes in self._made.items() if not memory.expired()]
        return sum(nbytes + -nbytes % ROUNDED for nbytes in held)


class Blank:
    """Records nothing, but knows when it is recording."""

    def __init__(self) -> None:
        self.going = False

    def begin(self) -> Any:
        self.going = True
        return self

    def capture_end(self) -> None:
        self.going = False

    def replay(self) -> None:
        """Launch nothing."""

    def side_stream(self) -> AbstractContextManager[None]:
        return nullcontext()


def kept(need: Need, whole: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the bytes kept by graphs of all buckets."""
    blank, plain = Blank(), attention.slot_attention

    def attend(*given: Any) -> Tensor:
        if blank.going and not whole:
            raise RuntimeError("attention can't be recorded")
        return plain(*given)

    with monkeypatch.context() as patch, Ledger() as ledger:
        patch.setattr(graphs, "recorder_for", lambda device: blank)
        patch.setattr(attention, "slot_attention", attend)
        need.model.allocate(need.slots, need.capacity, GRAPH_ROWS)
        need.model.capture()
        assert need.model.graphs == ("whole" if whole else "parts")
        return ledger.alive


@pytest.mark.parametrize("architecture", MORE)
def test_parts_keep_what_is_planned_and_hardly_less(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `fast` mode, because a CPU's exact products are padded."""
    model = tiny_model(architecture, dtype=torch.bfloat16, exact=False, steps="device")
    need = Need(model, 2, CAPACITY, 64, 4)
    beside = kept(need, False, monkeypatch) - kept(need, True, monkeypatch)
    planned = parts_claim(need, GRAPH_ROWS).nbytes
    assert 0 < beside <= planned <= MORE[architecture] * beside
    assert parts_claim(need, 0).nbytes == 0
