"""Launches kernels where their tensors are. Triton launches on the current device, which for a model on `cuda:1` is
another one unless somebody changed it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

Rest = ParamSpec("Rest")
Made = TypeVar("Made")
Launcher = Callable[Concatenate[Tensor, Rest], Made]


def on_own_device(launcher: Launcher[Rest, Made]) -> Launcher[Rest, Made]:
    """The launcher, run with its first tensor's device as the current one. In Triton's interpreter that is no GPU."""

    @wraps(launcher)
    def launch(tensor: Tensor, /, *rest: Rest.args, **named: Rest.kwargs) -> Made:
        device = tensor.device
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            return launcher(tensor, *rest, **named)
        with torch.cuda.device(device):
            return launcher(tensor, *rest, **named)

    return launch
