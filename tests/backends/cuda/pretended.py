"""A fake device: its tensors report another device than the CPU and compute on the CPU.

Like a real device, it rejects a mix with CPU tensors. It is called `meta`, so everything but Triton's kernels and
graphs runs as on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE, CPU = torch.device("meta"), torch.device("cpu")
COPIES = ("aten::to", "aten::_to_copy", "aten::copy_")  # copies between devices
INDEXED = ("aten::index", "aten::index_put_", "aten::_index_put_impl_")  # indices may be on the CPU


class Pretended(Tensor):
    """A tensor that wraps a CPU tensor."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Pretended:
        place = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        made: Pretended = Tensor._make_wrapper_subclass(cls, held.size(), device=DEVICE, **place)  # type: ignore[attr-defined]
        made.held = held
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Pretended({self.held!r})"

    def data_ptr(self) -> int:
        """Return the address of the wrapped tensor."""
        return self.held.data_ptr()

    def tolist(self) -> Any:
        """Return the numbers on the host."""
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, dict(kwargs or {}))


class _Factories(TorchDispatchMode):
    """Intercepts tensors created on the device or copied to it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, dict(kwargs or {}))


class _FromNumbers(TorchFunctionMode):
    """Handles `torch.tensor`, which would create a tensor without data."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor and kwargs.get("device") == DEVICE:
            return Pretended(func(*args, **{**kwargs, "device": CPU}))
        return func(*args, **kwargs)


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the wrapped tensors. Raise RuntimeError for a mix with CPU tensors.

    Inference tensors cannot hold a view, so inference mode is off here.
    """
    tensors = [part for part in tree_leaves((args, kwargs)) if isinstance(part, Tensor)]
    ours = [tensor for tensor in tensors if isinstance(tensor, Pretended)]
    name = func._schema.name
    checked = tree_leaves(args[:1]) if name in INDEXED else () if name in COPIES else tensors
    if ours and any(isinstance(part, Tensor) and part.dim() and not isinstance(part, Pretended) for part in checked):
        raise RuntimeError(f"Expected all tensors to be on the same device, but {func} has some on the CPU")
    asked = [part for part in tree_leaves((args, kwargs)) if isinstance(part, torch.device)]
    args, kwargs = tree_map_only(torch.device, lambda device: CPU, (args, kwargs))
    here = asked[0] == DEVICE if asked else isinstance(args[0], Pretended) if name in COPIES else bool(ours)
    with torch.inference_mode(False), torch.no_grad():
        made = func(*tree_map_only(Pretended, _held, args), **tree_map_only(Pretended, _held, kwargs))
        if not here:
            return made
        known = {id(tensor.held): tensor for tensor in ours}
        return tree_map_only(Tensor, lambda held: known[id(held)] if id(held) in known else Pretended(held), made)


def _held(tensor: Pretended) -> Tensor:
    return tensor.held


@contextmanager
def pretended_device() -> Iterator[None]:
    """Make DEVICE usable inside the block."""
    former = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a moved parameter changes its class
    try:
        with _Factories(), _FromNumbers():
            yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(former)
