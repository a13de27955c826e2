"""Loads a model folder (or hub id) behind the seam, and refuses what would be silently wrong. Knows transformers'
loading; knows nothing of requests.

Safetensors only, no remote code. An architecture that ignores the attention interface would run with its own, unrolled
cache; so the loader runs a ragged forward of three sequences against three single ones and demands equality.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from codespec.errors import ModelError
from codespec.models.attention import NAME, Seam, register
from codespec.models.language_model import LanguageModel, ModelSpec, Rows
from codespec.models.lean import make_lean
from codespec.models.linear import can_pack, pack_linears
from codespec.models.rotary import replace_rotary
from codespec.pair.architecture import why_unsuitable
from codespec.pair.folder import find_folder
from codespec.text.tokenizer import TextTokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
RAGGED_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.05}


def load_model(name: str, *, device: str = "cpu", dtype: str = "float32", exact: bool = True) -> LanguageModel:
    """Loads `name` (a local folder in the Hugging Face layout, or a hub id); slots are allocated later.

    Raises ModelError with one sentence for everything a user can meet: a missing or truncated folder, an architecture
    that does not pass the ragged check, an unknown dtype or device.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is not known: use one of {', '.join(DTYPES)}.")
    where = _device(device)
    folder = find_folder(name)
    _check_folder(folder)
    register()
    network = _network(folder, _config(folder), DTYPES[dtype])
    return wrap(network, _tokenizer(folder), name, device=where, dtype=DTYPES[dtype], exact=exact)


def wrap(
    network: nn.Module,
    tokenizer: TextTokenizer,
    name: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    exact: bool,
    lean: bool = True,
) -> LanguageModel:
    """Puts a transformers model (loaded with our attention) behind the seam, packed and checked.

    `lean=False` keeps transformers' layers where the lean ones would be chosen.
    """
    register()
    seam = Seam()
    seam.attach(network)
    rotary = replace_rotary(network, seam)
    network.eval().requires_grad_(False).to(device)
    spec = _describe(network, name, dtype)
    slim = make_lean(network, seam) if lean and rotary is None else None
    running = slim if slim is not None else network
    packed, notes = _pack(running, device, dtype, exact)
    spec = replace(spec, lean=slim is not None, packed=packed, notes=notes)
    model = LanguageModel(running, seam, rotary, tokenizer, spec, device=device, dtype=dtype, exact=exact)
    _check_ragged(model)
    return model


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
    )


def _pack(network: nn.Module, device: torch.device, dtype: torch.dtype, exact: bool) -> tuple[bool, tuple[str, ...]]:
    """Packs a CPU model's products; says whether it did, and why not."""
    if device.type != "cpu":
        return False, ()
    problem = can_pack(dtype)
    if problem:
        return False, (f"{problem}: plain products are used, slower and not row-invariant",)
    return pack_linears(network, exact) > 0, ()


def _device(device: str) -> torch.device:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError("No CUDA device is at hand: use --device cpu.")
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ModelError(f"device {device!r} is not known: use auto, cpu or cuda.") from error


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json: give a folder in the Hugging Face layout.")
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise ModelError(f"{folder} has no *.safetensors weights: convert the model (pickled weights are not read).")
    for file in weights:
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file} is truncated or corrupt ({error}): fetch or export the model again.") from error


def _config(folder: Path) -> Any:
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"The configuration of {folder} can't be read ({_first_line(error)}): check the folder or hub id."
        ) from error
    reason = why_unsuitable(config.to_dict())
    if reason:
        raise ModelError(reason)
    return config


def _network(folder: Path, config: Any, dtype: torch.dtype) -> nn.Module:
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        loader: Any = AutoModelForCausalLM
        network, report = loader.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=NAME,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(
            f"The model {folder} can't be loaded ({_first_line(error)}): check the folder or choose another model."
        ) from error
    finally:
        transformers_logging.set_verbosity(level)
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelError(
            f"The weights of {folder} lack {len(missing)} tensors (first: {missing[0]}): "
            "fetch or export the model again."
        )
    loaded: nn.Module = network
    return loaded


def _tokenizer(folder: Path) -> TextTokenizer:
    if (folder / "tokenizer.json").is_file():
        return TextTokenizer.from_folder(folder)
    try:
        slow = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(
            f"The tokenizer of {folder} can't be loaded ({_first_line(error)}): add a tokenizer.json to the folder."
        ) from error
    backend = getattr(slow, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"The tokenizer of {folder} has no fast form: add a tokenizer.json to the folder.")
    eos = frozenset(() if slow.eos_token_id is None else (slow.eos_token_id,))
    return TextTokenizer.from_backend(backend, eos_ids=eos)


def _check_ragged(model: LanguageModel) -> None:
    """Three sequences in one forward must give what each gives alone, and a cached continuation what a whole prefill
    gives.
    """
    sample = [(7 * i + 3) % max(8, min(model.spec.vocab_size, 900)) for i in range(24)]
    lengths = (5, 12, 9)
    try:
        model.forward([Rows(0, 0, sample[:4])], cached=False)
        if not model.shapes:
            raise ModelError(_ignores(model))
        model.allocate(3, 32)
        alone = torch.cat([model.forward([Rows(0, 0, sample[i : i + n])]) for i, n in enumerate(lengths)])
        model.forward([Rows(i, 0, sample[i : i + n - 3]) for i, n in enumerate(lengths)])
        ragged = model.forward([Rows(i, n - 3, sample[i + n - 3 : i + n]) for i, n in enumerate(lengths)])
    except (TypeError, AttributeError, RuntimeError, AssertionError, ValueError) as error:
        raise ModelError(f"{_ignores(model)} ({_first_line(error)})") from error
    gap = (alone - ragged).abs().max().item() / max(1.0, alone.abs().max().item())
    if not gap <= RAGGED_TOLERANCE[model.dtype]:
        raise ModelError(f"{_ignores(model)} (a ragged forward differs by {gap:.2g})")
    model.cache = None


def _ignores(model: LanguageModel) -> str:
    return (
        f"{model.spec.architecture} does not run correctly through codespec's attention interface, so its cache "
        "could not be rolled back: choose another architecture (Llama, Qwen, Mistral, Gemma, GPT-NeoX, Phi-3, "
        "StarCoder2 … work)"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
