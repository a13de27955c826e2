"""Load a model's float weights with transformers, and reject models whose results would be silently wrong.

Only safetensors files are read, and no remote code runs. An architecture that ignores the attention interface would use
its own cache, which is never rolled back, so a model is rejected unless codespec's attention gives the same results as
the model's own (`model_check`). Importing this module takes seconds, because it imports transformers.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from codespec.backends.language_model import ModelSpec
from codespec.backends.memory_plan import Claim, demand_room, free_memory
from codespec.backends.text_tokenizer import check_tokenizer, load_tokenizer
from codespec.backends.torch import linear, model_check
from codespec.backends.torch.attention import NAME, Seam, register
from codespec.backends.torch.experts import tile_routers, unstack_experts
from codespec.backends.torch.lean import LeanNetwork, make_lean
from codespec.backends.torch.model import Steps, TorchModel
from codespec.backends.torch.model_check import FAILURES, one_line, quiet, read_config, refusal
from codespec.backends.torch.recurrent_layers import GatedDeltaNet, RecurrentLayer, ShortConvolution
from codespec.backends.torch.rotary import replace_rotary
from codespec.backends.torch.rowwise import replace_activations, replace_norms, steady_gates
from codespec.errors import ModelError
from codespec.store.model_folder import architecture, quantization_of, read_weights
from codespec.store.resolve import ModelFiles, resolve
from codespec.text.tokenizer import TextTokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "native": torch.float32}
RECURRENT = (GatedDeltaNet, ShortConvolution)
MATRIX_INSTRUCTIONS = (8, 0)
AGAIN = "download or export the model again"
NO_TRITON = "run `pip install triton` (torch's CUDA builds for Linux include Triton), or set device to cpu"


def load_torch_model(name: str, *, device: str = "cpu", dtype: str = "float32", exact: bool = True) -> TorchModel:
    """Load a model as `codespec.backends.loader.load_model` does, but always with torch."""
    return load_torch_files(resolve(name).open("float32"), device=device, dtype=dtype, exact=exact)


def load_torch_files(
    files: ModelFiles, *, device: str = "cpu", dtype: str = "float32", exact: bool = True
) -> TorchModel:
    """Load the float weights of a folder. Raise the same errors as `codespec.backends.loader.load_files`.

    With dtype "native", the matrices are packed after loading, and the native kernels compute the products on a CPU.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is not known", f"use one of {', '.join(DTYPES)}")
    where, number, folder, name = find_device(device), DTYPES[dtype], files.path, files.ref.name
    register()
    config = read_config(folder)
    free = free_memory(where)
    if free is not None:
        tied = config.get_text_config().tie_word_embeddings
        nbytes = read_weights(folder, tied=tied).parameters * number.itemsize
        demand_room([Claim(f"weights of {name}", nbytes, "choose a smaller model or dtype bfloat16")], free)
    network = _network(folder, config, number, where if where.type == "cuda" else None)
    if where.type != "cpu" and any(kind.fits(module) for module in network.modules() for kind in RECURRENT):
        raise ModelError(f"{name} has recurrent layers, which run only on a CPU", "set device to cpu")
    tokenizer = load_tokenizer(folder)
    check_tokenizer(tokenizer, network.config.get_text_config().vocab_size, folder)
    model = wrap(network, tokenizer, name, device=where, dtype=number, exact=exact, native=dtype == "native")
    model.folder = folder
    return model


def find_device(device: str) -> torch.device:
    """Return the device with this name; `auto` prefers CUDA. Raise ModelError if the device is not available."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError("There is no CUDA device", "use --device cpu")
    if device.startswith("cuda") and find_spec("triton") is None:
        raise ModelError("A GPU needs Triton, which is not installed", NO_TRITON)
    try:
        found = torch.device(device)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ModelError(f"device {device!r} is not known", "use auto, cpu or cuda")
    return found


def wrap(
    network: nn.Module,
    tokenizer: TextTokenizer,
    name: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    exact: bool,
    native: bool = False,
    steps: Steps | None = None,
) -> TorchModel:
    """Pack, check and wrap a transformers model that was loaded with codespec's attention.

    With `native`, the native kernels compute the products. `steps` defaults to spans on a CPU and to device steps
    elsewhere.
    """
    network.eval().requires_grad_(False).to(device)
    spec = _describe(network, name, dtype)
    model_check.check_windows(network, spec.max_length)
    kernel = ""
    if native:
        unstack_experts(network)
        kernel, spec = linear.pack_linears(network), replace(spec, dtype="native")
    reference = model_check.reference_logits(network)
    seam = Seam()
    # A recurrent layer of a known kind is replaced by one that keeps a state for each slot.
    linear.replace_modules(network, lambda layer: next((kind(layer) for kind in RECURRENT if kind.fits(layer)), None))
    seam.attach(network)
    rotary = replace_rotary(network, seam)
    lean_network = make_lean(network, seam) if rotary is None and not native else None
    running = lean_network if lean_network is not None else network
    packed, problem = _pack(running, device, dtype, exact)
    notes = tuple(note for note in (slow_products(device), problem) if note)
    spec = replace(spec, lean=lean_network is not None, packed=packed or native, notes=notes)
    model = TorchModel(running, seam, rotary, tokenizer, spec, device=device, dtype=dtype, exact=exact, steps=steps)
    model.kernel = kernel
    model.states = {part.layer_idx: part.shape for part in running.modules() if isinstance(part, RecurrentLayer)}
    model_check.check_seam(model, reference)
    return model


def slow_products(device: torch.device) -> str:
    """Return a note if the GPU is too old for the matrix instructions of codespec's kernels, else ""."""
    if device.type != "cuda" or (version := torch.cuda.get_device_capability(device)) >= MATRIX_INSTRUCTIONS:
        return ""
    old = f"{torch.cuda.get_device_name(device)} has compute capability {version[0]}.{version[1]}"
    return f"{old}: below 8.0 codespec's kernels can't use matrix instructions, so device cpu may be faster"


def _describe(network: nn.Module, name: str, dtype: torch.dtype) -> ModelSpec:
    config: Any = network.config
    text = config.get_text_config()
    inner = getattr(text, "intermediate_size", None)
    if isinstance(inner, list | tuple):  # each layer has its own
        inner = max(inner, default=0)
    return ModelSpec(
        name=name,
        architecture=type(network).__name__,
        parameters=sum(p.numel() for p in network.parameters()),
        vocab_size=text.vocab_size,
        max_length=getattr(text, "max_position_embeddings", None) or 2**31,
        dtype=str(dtype)[6:],
        layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        inner_size=inner or 4 * text.hidden_size,
    )


def _pack(network: nn.Module, device: torch.device, dtype: torch.dtype, exact: bool) -> tuple[bool, str]:
    """Pack weights on a CPU, or fix the summation order on a GPU. Return whether weights are packed, and a note."""
    if device.type != "cpu":
        return False, _fix_order(network, device, dtype) if exact else ""
    problem = linear.can_pack(dtype)
    unstack_experts(network)
    if exact:
        replace_activations(network)
        steady_gates(network)
    if exact or not problem:
        linear.tile_linears(network, exact, packed=not problem)
    if exact:
        tile_routers(network, packed=not problem)
    return not problem, f"{problem}: plain products are used, which are slower" if problem else ""


def _fix_order(network: nn.Module, device: torch.device, dtype: torch.dtype) -> str:
    if problem := linear.find_product_variance(device, dtype):
        return f"{problem}: plain products are used, which are not row-invariant"
    linear.fix_linears(network)
    left = () if isinstance(network, LeanNetwork) else replace_norms(network)  # lean norms are row-wise already
    return f"{', '.join(left)} is computed by torch, which is not row-invariant" if left else ""


def _network(folder: Path, config: Any, dtype: torch.dtype, device: torch.device | None) -> Any:
    """Load a network with transformers, onto `device` if given and accelerate is installed, else into host memory."""
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
                ignore_mismatched_sizes=True,  # reported below with codespec's own error
                **place,
            )
    except (*FAILURES, SafetensorError) as error:
        if error.args == (NAME,):  # the model looks attention up in its own table
            raise refusal(architecture(config.to_dict()), "the model has its own attention") from error
        raise ModelError(
            f"The model {folder} can't be loaded ({one_line(error)})", "check the folder, or choose another model"
        ) from error
    if wrong := sorted(report["mismatched_keys"]):
        what = f"The weights of {folder} do not have the sizes in its config.json (first: {wrong[0][0]})"
        raise ModelError(what, AGAIN)
    if quantization_of(config.to_dict()):
        # transformers' dequantizers leave some weights in the format of the file or of the scales.
        kept = network._get_dtype_plan(dtype)  # names of weights that the model keeps in float32
        for name, weight in network.named_parameters():
            if weight.is_floating_point() and not any(part in name for part in kept):
                weight.data = weight.data.to(dtype)
    if missing := sorted(report["missing_keys"]):
        raise ModelError(f"The weights of {folder} lack {len(missing)} tensors (first: {missing[0]})", AGAIN)
    return network
