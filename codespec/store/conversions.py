"""Convert models that can't be loaded as they are, each once, and keep the folders (`store.conversion_cache`).

A folder is converted from a GGUF file, or merged from a model and a peft adapter. The converters run in separate
processes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

from codespec.errors import ModelError
from codespec.files import open_regular
from codespec.store.conversion_cache import SOURCE, Conversion, convert_once, hash_once, kept_folder
from codespec.store.pulled import MANIFEST
from codespec.store.weights import read_header
from codespec.text.tokenizer_json import read_json

GGUF_CONVERTER, ADAPTER_MERGER = "codespec.backends.gguf.convert", "codespec.backends.torch.merge_adapter"
TEXTS_ONLY = "--texts"  # the converter then writes configuration and tokenizer, without weights
# Bytes of the setting in a header: its key, the string type, eight bytes of length, a short word.
_GGUF_ARCHITECTURE = re.compile(rb"general\.architecture\x08\0\0\0(.)\0{7}([a-z0-9]+)", re.DOTALL)
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_FOREIGN = ("layer_replication", "target_parameters", "megatron_config")  # settings beyond a model's own layers
_NAMING = ("modules_to_save", "rank_pattern", "alpha_pattern")  # settings with entries that peft matches as patterns
_LITERAL = re.compile(r"\^?[A-Za-z0-9_.]{1,200}")  # a layer's name or its end: as a regex it never backtracks
_ADAPTED = re.compile(r"base_model\.model\.(.+)\.lora_(?:A\.weight|embedding_A)")
TEXTS = ("*.json", "*.jinja", "merges.txt", "*.model")  # a tokenizer without tokenizer.json needs the last two


def convert_gguf(file: Path) -> Path:
    """Return the float folder of a GGUF file, converted now unless cached. Raises ModelError."""
    with _readable(file):
        conversion = Conversion(
            hash_once(file),
            GGUF_CONVERTER,
            (str(file.absolute()),),
            progress=f"converting {file.name} (once)",
            waiting="another process converts this file: waiting for it",
            failed=f"{file} could not be converted",
            fix="take the model's folder in the Hugging Face layout",
            nbytes=file.stat().st_size,
        )
        return convert_once(conversion)


def texts_of(file: Path) -> Path:
    """Return the folder of a GGUF file's configuration and tokenizer, without weights. Raises ModelError."""
    with _readable(file):
        if kept := kept_folder(hash_once(file)):  # the float folder has them, too
            return kept
        conversion = Conversion(
            hashlib.sha256(f"texts 1\n{file.name} {hash_once(file)}".encode()).hexdigest(),
            GGUF_CONVERTER,
            (TEXTS_ONLY, str(file.absolute())),
            progress="",
            waiting="another process reads this file: waiting for it",
            failed=f"{file} could not be read",
            fix="take the model's folder in the Hugging Face layout",
            nbytes=file.stat().st_size,
        )
        return convert_once(conversion)


def gguf_architecture(file: Path) -> str:
    """Return the architecture that a GGUF file names near its beginning, or "" if it names none. Raises OSError."""
    with open_regular(file) as stream:
        match = _GGUF_ARCHITECTURE.search(stream.read(1 << 16))
    return match[2][: match[1][0]].decode() if match is not None else ""


def source_parameters(config: Any) -> int:
    """Return the number of weights of the file that a folder without weights was made from, or 0 for another folder."""
    source = config.get(SOURCE)
    count = source.get("parameters", 0) if isinstance(source, dict) else 0
    return count if isinstance(count, int) else 0


def source_quantization(config: Any) -> str:
    """Return the original format of a converted model ("Q4_1"), from its config.json, or "" for any other model."""
    source = config.get(SOURCE)
    return str(source.get("quantization", "")) if isinstance(source, dict) else ""


def is_adapter(folder: Path) -> bool:
    """Return whether a folder contains an adapter and no whole model."""
    return (folder / ADAPTER_CONFIG).is_file() and not any(folder.glob("model*.safetensors"))


def base_model_name(adapter: Path) -> str:
    """Return the model that an adapter was trained for, from its configuration. Raises ModelError if missing."""
    name = read_json(adapter / ADAPTER_CONFIG).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ModelError(f"{adapter / ADAPTER_CONFIG} does not say which model it is for", "export the adapter again")
    return name


def check_adapter(adapter: Path) -> None:
    """Raise ModelError if the adapter is not a LoRA, or if its settings claim more than its weights contain."""
    settings, tensors = read_json(adapter / ADAPTER_CONFIG), read_header(adapter / ADAPTER_WEIGHTS)
    if settings.get("peft_type") != "LORA" or any(settings.get(name) for name in _FOREIGN):
        raise ModelError(f"The adapter {adapter} is not a LoRA of its model's own layers", "use a LoRA of this model")
    for name in _NAMING:
        if not _names_layers(settings.get(name) or [], most=len(tensors)):
            raise ModelError(f"The adapter {adapter} lists more than layers in {name}", "use a LoRA of this model")
    patterns, tokens = settings.get("rank_pattern"), settings.get("trainable_token_indices")
    lists = list(tokens.values()) if isinstance(tokens, dict) else [tokens]
    claimed = {
        "rank": max([settings.get("r"), *(patterns.values() if isinstance(patterns, dict) else ())], key=_size),
        "number of tokens": sum(len(listed) for listed in lists if isinstance(listed, list)),
    }
    held = {
        "rank": max((min(tensor.shape) for tensor in tensors if len(tensor.shape) == 2), default=0),
        "number of tokens": max((tensor.shape[0] for tensor in tensors if tensor.shape), default=0),
    }
    for what, value in claimed.items():
        if _size(value) > held[what]:
            raise ModelError(
                f"The adapter {adapter} claims the {what} {value}, and its weights hold {held[what]}", "fetch it again"
            )


def adapted_layers(adapter: Path) -> list[str]:
    """Return the names of the layers that an adapter changes, from its weights.

    The settings may name them by patterns, which are untrusted and never matched: one can take a regex engine minutes.
    """
    matches = (_ADAPTED.fullmatch(tensor.name) for tensor in read_header(adapter / ADAPTER_WEIGHTS))
    return sorted({match[1] for match in matches if match is not None})


def _names_layers(values: Any, most: int) -> bool:
    """Return whether `values` contains at most `most` layer names, as a list or as the keys of an object."""
    fits = isinstance(values, list | dict) and len(values) <= most
    return fits and all(isinstance(value, str) and _LITERAL.fullmatch(value) for value in values)


def _size(value: Any) -> float:
    """Return a size as a number, or infinity for any other value."""
    return value if isinstance(value, int) else inf


def merge_adapter(base: Path, adapter: Path) -> Path:
    """Return the folder of a Hugging Face model with an adapter merged into it, merged now unless cached.

    Raises ModelError.
    """
    check_adapter(adapter)
    with _readable(adapter):
        weights = (*sorted(base.glob("*.safetensors")), adapter / ADAPTER_WEIGHTS)
        parts = [f"{file.name} {hash_once(file)}\n" for file in (*weights, *text_files(base), *text_files(adapter))]
        conversion = Conversion(
            hashlib.sha256("".join(parts).encode()).hexdigest(),
            ADAPTER_MERGER,
            (str(base.absolute()), str(adapter.absolute())),
            progress=f"merging the adapter {adapter} into its model (once)",
            waiting="another process merges this adapter: waiting for it",
            failed=f"The adapter {adapter} could not be merged",
            fix="merge it with peft on another machine",
            nbytes=sum(file.stat().st_size for file in weights),
        )
        return convert_once(conversion)


def text_files(folder: Path) -> list[Path]:
    """Return a folder's configuration, tokenizer and chat template, which a converted or merged model copies."""
    return sorted(file for pattern in TEXTS for file in folder.glob(pattern) if file.name != MANIFEST)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn an OSError into a ModelError about its file, or about `path` if the error names none."""
    try:
        yield
    except OSError as error:
        where, why = error.filename or path, error.strerror or error
        raise ModelError(f"{where} can't be used ({why})", "check the path and its permissions") from error
