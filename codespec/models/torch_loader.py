"""Load a model folder, file or hub id: int8 folders directly, everything else with transformers.

transformers is imported only when it loads a model: the import takes seconds, and int8 folders do not need it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from codespec.errors import ModelError
from codespec.models.attention import Seam
from codespec.models.cuda.slot_attention import require_triton
from codespec.models.int8.kernels import choose_kernel
from codespec.models.int8.network import Blueprint, is_converted, load_network, weights_size
from codespec.models.language_model import ModelSpec
from codespec.models.memory_plan import demand_memory
from codespec.models.model_check import check_seam
from codespec.models.text_tokenizer import check_tokenizer, load_tokenizer
from codespec.models.torch_model import TorchModel
from codespec.store.resolve import check_folder, resolve
from codespec.text.control_tokens import read_json

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.float32}


def load_torch_model(
    name: str,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    exact: bool = True,
) -> TorchModel:
    """Load a model as `codespec.models.loader.load_model` does, to be computed by torch."""
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is not known", f"use one of {', '.join((*DTYPES, 'native'))}")
    where = find_device(device)
    if dtype == "int8" and where.type != "cpu":
        raise ModelError("int8 is for a CPU", "use dtype bfloat16")
    folder = resolve(name).folder(dtype)
    check_folder(folder)
    config = read_json(folder / "config.json")
    if is_converted(config):
        model = _load_int8(folder, config, name, exact)
    else:
        from codespec.models.transformers_loader import load_float_model

        model = load_float_model(folder, name, where, dtype, exact)
    model.folder = folder
    return model


def _load_int8(folder: Path, config: Any, name: str, exact: bool) -> TorchModel:
    """Load the model of a folder whose weights were converted to int8."""
    demand_memory(name, weights_size(folder))
    plan, choice, seam = Blueprint.read(config), choose_kernel(), Seam()
    with ThreadPoolExecutor(1) as pool:  # Python work in parallel with native packing
        tokenizer_read = pool.submit(load_tokenizer, folder)
        network = load_network(folder, plan, seam, choice)
        tokenizer = tokenizer_read.result()
    spec = ModelSpec(
        name=name,
        architecture=plan.architecture,
        parameters=plan.parameters,
        vocab_size=plan.vocabulary,
        max_length=plan.max_length,
        dtype="int8",
        layers=plan.layers,
        hidden_size=plan.hidden_size,
        inner_size=plan.inner_size,
        lean=True,
        packed=True,
        notes=choice.notes,
    )
    check_tokenizer(tokenizer, plan.vocabulary, folder)
    model = TorchModel(
        network, seam, None, tokenizer, spec, device=torch.device("cpu"), dtype=torch.float32, exact=exact
    )
    check_seam(model, None)
    model.kernel = choice.label
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
