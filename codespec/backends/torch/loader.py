"""Load a model's float weights with transformers, and reject models that would be silently wrong.

Safetensors only, no remote code. An architecture that ignores the attention interface would use its own cache, which is
never rolled back. So a model is rejected unless our attention gives the same results as its own (`model_check`).
Importing this module takes seconds, because it imports transformers.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from codespec.backends.language_model import ModelSpec
from codespec.backends.memory_plan import demand_room, free_memory, weights_claim
from codespec.backends.text_tokenizer import check_tokenizer, load_tokenizer
from codespec.backends.torch.attention import NAME, Seam, register
from codespec.backends.torch.cuda import invariant_linear
from codespec.backends.torch.cuda.slot_attention import require_triton
from codespec.backends.torch.experts import tile_routers, unstack_experts
from codespec.backends.torch.lean import LeanNetwork, make_lean
from codespec.backends.torch.linear import can_pack, replace_modules, tile_linears
from codespec.backends.torch.model import Steps, TorchModel
from codespec.backends.torch.model_check import (
    FAILURES,
    check_seam,
    check_windows,
    one_line,
    quiet,
    read_config,
    reference_logits,
    refusal,
)
from codespec.backends.torch.native_linear import pack_linears
from codespec.backends.torch.recurrent_layers import GatedDeltaNet, RecurrentLayer, ShortConvolution
from codespec.backends.torch.rotary import replace_rotary
from codespec.backends.torch.rowwise import replace_activations, replace_norms, steady_gates
from codespec.errors import ModelError
from codespec.store.model_folder import architecture, quantization_of, read_weights
from codespec.store.resolve import ModelFiles, resolve
from codespec.text.tokenizer import TextTokenizer

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


RECURRENT = (GatedDeltaNet, ShortConvolution)
MATRIX_INSTRUCTIONS = (8, 0)


def load_float_model(
    folder: Path,
    name: str,
    device: torch.device,
    form: str,
    exact: bool,
) -> TorchModel:
    """Load the model of a folder in the Hugging Face layout, in the format `form`.

    "native" packs its matrices for the native kernels after loading. Raises ModelError as `loader.load_model` does.
    """
    native = form == "native"
    dtype = torch.float32 if native else getattr(torch, form)
    _check_files(folder)
    register()
    config = read_config(folder)
    free = free_memory(device)
    if free is not None:
        tied = config.get_text_config().tie_word_embeddings
        demand_room([weights_claim(name, read_weights(folder, tied=tied).parameters, dtype)], free)
    network = _network(folder, config, dtype, device if device.type == "cuda" else None)
    if device.type != "cpu" and any(kind.fits(module) for module in network.modules() for kind in RECURRENT):
        raise ModelError(f"{name} has recurrent layers, which run on a CPU", "use device cpu")
    tokenizer = load_tokenizer(folder)
    check_tokenizer(tokenizer, network.config.get_text_config().vocab_size, folder)
    return wrap(network, tokenizer, name, device=device, dtype=dtype, exact=exact, native=native)


def wrap(
    network: nn.Module,
    tokenizer: TextTokenizer,
    name: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    exact: bool,
    lean: bool = True,
    native: bool = False,
    steps: Steps | None = None,
) -> TorchModel:
    """Pack, check and wrap a transformers model that was loaded with our attention.

    `lean=False` keeps transformers' layers even if lean ones are possible; `native` computes its products with the
    native kernels; `steps` defaults to the device's kind.
    """
    register()
    network.eval().requires_grad_(False).to(device)
    spec = _describe(network, name, dtype)
    check_windows(network, spec.max_length)
    notes: tuple[str, ...] = slow_products(device)
    kernel = ""
    if native:
        unstack_experts(network)
        kernel, spec = pack_linears(network).label, replace(spec, dtype="native")
    reference = reference_logits(network)
    seam = Seam()
    replace_modules(network, _recurrent)
    seam.attach(network)
    rotary = replace_rotary(network, seam)
    lean_network = make_lean(network, seam) if lean and rotary is None and not native else None
    running = lean_network if lean_network is not None else network
    packed, problems = _pack(running, device, dtype, exact)
    notes += problems
    spec = replace(spec, lean=lean_network is not None, packed=packed or native, notes=notes)
    model = TorchModel(running, seam, rotary, tokenizer, spec, device=device, dtype=dtype, exact=exact, steps=steps)
    model.kernel = kernel
    model.states = {part.layer_idx: part.shape for part in running.modules() if isinstance(part, RecurrentLayer)}
    check_seam(model, reference)
    return model


def _recurrent(mixer: nn.Module) -> RecurrentLayer | None:
    """Return the replacement of a recurrent layer, which keeps a state for each slot, or None for another layer."""
    return next((kind(mixer) for kind in RECURRENT if kind.fits(mixer)), None)


def slow_products(device: torch.device) -> tuple[str, ...]:
    """Return a note if the GPU is too old for the matrix instructions that our kernels use."""
    if device.type != "cuda" or (version := torch.cuda.get_device_capability(device)) >= MATRIX_INSTRUCTIONS:
        return ()
    old = f"{torch.cuda.get_device_name(device)} has compute capability {version[0]}.{version[1]}"
    return (f"{old}: below 8.0 codespec's kernels can't use matrix instructions, so device cpu may be faster",)


def _describe(network: nn.Module, name: str, dtype: torch.dtype) -> ModelSpec:
    config: Any = network.config
    text = config.get_text_config()
    return ModelSpec(
        name=name,
        architecture=type(network).__name__,
        parameters=sum(p.numel() for p in network.parameters()),
        vocab_size=text.vocab_size,
        max_length=getattr(text, "max_position_embeddings", None) or 2**31,
        dtype=str(dtype)[6:],
        layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        inner_size=_largest(getattr(text, "intermediate_size", None)) or 4 * text.hidden_size,
    )


def _largest(size: int | list[int] | None) -> int:
    """Return a size, or the largest one if each layer has its own."""
    return max(size, default=0) if isinstance(size, list | tuple) else size or 0


def _pack(network: nn.Module, device: torch.device, dtype: torch.dtype, exact: bool) -> tuple[bool, tuple[str, ...]]:
    """Pack a CPU model's products; in exact mode, make a GPU model's row-invariant.

    Return whether they are packed, and notes on what could not be done.
    """
    if device.type != "cpu":
        return _fix_order(network, device, dtype) if exact else (False, ())
    problem = can_pack(dtype)
    unstack_experts(network)
    if exact:
        replace_activations(network)
        steady_gates(network)
    if exact or not problem:
        tile_linears(network, exact, packed=not problem)
    if exact:
        tile_routers(network, packed=not problem)
    return not problem, (f"{problem}: plain products are used, which are slower",) if problem else ()


def _fix_order(network: nn.Module, device: torch.device, dtype: torch.dtype) -> tuple[bool, tuple[str, ...]]:
    problem = invariant_linear.find_variance(device, dtype)
    if problem:
        return False, (f"{problem}: plain products are used, which are not row-invariant",)
    invariant_linear.fix_linears(network)
    left = () if isinstance(network, LeanNetwork) else replace_norms(network)  # lean norms are row-wise already
    return False, (f"{', '.join(left)} is computed by torch, which is not row-invariant",) if left else ()


def _check_files(folder: Path) -> None:
    """Raise ModelError if the safetensors library can't open a file."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file} is truncated or corrupt ({error})", "fetch or export the model again") from error


def _network(folder: Path, config: Any, dtype: torch.dtype, device: torch.device | None) -> Any:
    """Load transformers' network, onto `device` if given and accelerate is installed, else into host memory."""
    transformers_logging.disable_progress_bar()
    loader: Any = AutoModelForCausalLM
    straight = device is not None and find_spec("accelerate") is not None
    place = {"device_map": {"": device}} if straight else {}
    try:
        with quiet():
            network, report = loader.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation=NAME,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below with our own error
                **place,
            )
    except (*FAILURES, SafetensorError) as error:
        if error.args == (NAME,):  # the model looks attention up in its own table
            raise ModelError(refusal(architecture(config.to_dict()), "it has its own")) from error
        raise ModelError(
            f"The model {folder} can't be loaded ({one_line(error)})", "check the folder or choose another model"
        ) from error
    wrong = sorted(report["mismatched_keys"])
    if wrong:
        raise ModelError(
            f"The weights of {folder} do not have the sizes in its config.json (first: {wrong[0][0]})",
            "fetch or export the model again",
        )
    if quantization_of(config.to_dict()):
        _unify(network, dtype)
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelError(
            f"The weights of {folder} lack {len(missing)} tensors (first: {missing[0]})",
            "fetch or export the model again",
        )
    return network


def _unify(network: Any, dtype: torch.dtype) -> None:
    """Convert the weights that transformers' dequantizers leave in the format of the file or of the scales."""
    kept = network._get_dtype_plan(dtype)  # names of weights that the model keeps in float32
    for name, weight in network.named_parameters():
        if weight.is_floating_point() and not any(part in name for part in kept):
            weight.data = weight.data.to(dtype)
