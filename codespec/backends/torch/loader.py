"""Load a model folder, file or hub id with transformers, to be computed by torch."""

from __future__ import annotations

import torch

from codespec.backends.torch.cuda.slot_attention import require_triton
from codespec.backends.torch.model import TorchModel
from codespec.backends.torch.transformers_loader import load_float_model
from codespec.errors import ModelError
from codespec.store.resolve import ModelFiles, resolve

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "native": torch.float32}


def load_torch_model(
    name: str,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    exact: bool = True,
) -> TorchModel:
    """Load a model as `codespec.backends.loader.load_model` does, to be computed by torch."""
    return load_torch_files(resolve(name).open("float32"), device=device, dtype=dtype, exact=exact)


def load_torch_files(
    files: ModelFiles,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    exact: bool = True,
) -> TorchModel:
    """Load the float weights of a folder as `codespec.backends.loader.load_files` does.

    With dtype "native" the native kernels compute its products, on a CPU.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is not known", f"use one of {', '.join(DTYPES)}")
    where = find_device(device)
    model = load_float_model(files.path, files.ref.name, where, dtype, exact)
    model.folder = files.path
    return model


def find_device(device: str) -> torch.device:
    """Return the device of that name; `auto` prefers CUDA. Raise ModelError if it is not available."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError("There is no CUDA device", "use --device cpu")
    if device.startswith("cuda"):
        require_triton("A GPU")
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise ModelError(f"device {device!r} is not known", "use auto, cpu or cuda")
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ModelError(f"device {device!r} is not known", "use auto, cpu or cuda") from error
