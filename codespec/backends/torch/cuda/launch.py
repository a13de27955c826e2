"""Launch kernels on the device of their tensors.

Triton launches on the current device, which may differ from that of a model on `cuda:1`.
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
    """Wrap a launcher to run with its first tensor's device as the current CUDA device. CPU tensors (in Triton's
    interpreter) need no change.
    """

    @wraps(launcher)
    def launch(tensor: Tensor, /, *rest: Rest.args, **named: Rest.kwargs) -> Made:
        device = tensor.device
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            return launcher(tensor, *rest, **named)
        with torch.cuda.device(device):
            return launcher(tensor, *rest, **named)

    return launch
