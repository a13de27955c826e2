"""Make gates that a transformers layer computes with a plain sigmoid batch-invariant (`rowwise.steady`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from codespec.models.rowwise import steady

SIGMOIDS = (torch.sigmoid, Tensor.sigmoid, functional.sigmoid)


class SteadySigmoids(TorchFunctionMode):
    """Inside this context, a sigmoid of a row does not depend on other rows."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace sigmoids; run everything else as it is."""
        return steady(torch.sigmoid, args[0]) if func in SIGMOIDS else func(*args, **(kwargs or {}))


def steady_gates(model: nn.Module) -> int:
    """Wrap every layer of transformers whose code calls a sigmoid; return their number."""
    gated = {kind for kind in {type(module) for module in model.modules()} if _calls_sigmoid(kind)}
    found = [module for module in model.modules() if type(module) in gated]
    for module in found:
        _wrap(module)
    return len(found)


def _calls_sigmoid(kind: type[nn.Module]) -> bool:
    return kind.__module__.startswith("transformers.models.") and "sigmoid(" in inspect.getsource(kind.forward)


def _wrap(module: nn.Module) -> None:
    own = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with SteadySigmoids():
            return own(*args, **kwargs)

    module.forward = forward
