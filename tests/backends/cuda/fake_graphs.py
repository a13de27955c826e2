"""Fake CUDA graphs: record every operation with its tensors and replay them into the same memory.

As in a real graph, the host cannot read values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from codespec.backends.torch import attention
from codespec.backends.torch.cuda import graphs


class FakeGraph(TorchDispatchMode):
    """Recorded operations in order, with their inputs and outputs."""

    def __init__(self, heard: list[str]) -> None:
        super().__init__()
        self._heard = heard
        self._calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a number is asked for by the host")
        made = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, made))
        return made

    def record(self, kernel: Callable[..., Tensor], *given: Any) -> Tensor:
        """Record a kernel as one operation. It may read values, as a real kernel does on the device."""
        with _disable_current_modes():
            made = kernel(*given)
        self._calls.append((kernel, given, {}, made))
        return made

    def capture_end(self) -> None:
        self.__exit__(None, None, None)

    def replay(self) -> None:
        self._heard.append("graph")
        for func, args, kwargs, made in self._calls:
            for new, old in zip(tree_leaves(func(*args, **kwargs)), tree_leaves(made), strict=True):
                if isinstance(old, Tensor) and new.data_ptr() != old.data_ptr():
                    old.copy_(new)


class FakeRecorder:
    """Records fake graphs. `going` is true while it records; `heard` lists the replayed graphs and kernels."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.made: list[FakeGraph] = []

    def begin(self) -> FakeGraph:
        self.made.append(FakeGraph(self.heard))
        self.made[-1].__enter__()
        return self.made[-1]

    def side_stream(self) -> AbstractContextManager[None]:
        return nullcontext()

    @property
    def going(self) -> bool:
        return torch.utils._python_dispatch._get_current_dispatch_mode() is not None


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRecorder]:
    """Capture steps as fake graphs, with attention as a kernel."""
    found = FakeRecorder()
    plain = attention.slot_attention

    def kernel(*given: Any) -> Tensor:
        found.heard.append("attention")
        return plain(*given)

    def attend(*given: Any) -> Tensor:
        return found.made[-1].record(kernel, *given) if found.going else kernel(*given)

    monkeypatch.setattr(graphs, "recorder_for", lambda device: found)
    monkeypatch.setattr(attention, "slot_attention", attend)
    yield found
    assert not found.going, "a recording was left running"
