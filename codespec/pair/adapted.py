"""From a model and an adapter in peft's layout to the folder in which both are one, made once (see `made`).

Knows which files an adapter has and what names its model; knows nothing of matrices.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from codespec.catalogue.store import MANIFEST
from codespec.errors import ModelError
from codespec.pair.made import Making, Say, hash_once, made
from codespec.text.control_tokens import read_json

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MERGER = "codespec.models.merge_adapter"


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter and no model."""
    return (folder / CONFIG).is_file() and not any(folder.glob("model*.safetensors"))


def base_name(adapter: Path) -> str:
    """The model that an adapter was made for, as it would be named to codespec. ModelError where it says none."""
    name = read_json(adapter / CONFIG).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ModelError(f"{adapter / CONFIG} does not say which model it is for: export the adapter again.")
    return name


def adapted(base: Path, adapter: Path, say: Say | None = None) -> Path:
    """The folder of a model (a folder in the Hugging Face layout) with an adapter merged into it."""
    try:
        weights = (*sorted(base.glob("*.safetensors")), adapter / WEIGHTS)
        parts = [f"{file.name} {hash_once(file)}\n" for file in (*weights, *_texts(base), *_texts(adapter))]
        return made(
            Making(
                hashlib.sha256("".join(parts).encode()).hexdigest(),
                MERGER,
                (str(base.absolute()), str(adapter.absolute())),
                told=f"merging the adapter {adapter} into its model (once)",
                waiting="another process merges this adapter: waiting for it",
                failed=f"The adapter {adapter} could not be merged",
                nbytes=sum(file.stat().st_size for file in weights),
            ),
            say,
        )
    except OSError as error:
        place = error.filename or adapter
        raise ModelError(f"{place} can't be used ({error.strerror}): check the path and its permissions.") from error


def _texts(folder: Path) -> list[Path]:
    """Configuration, tokenizer and chat template, which the merged model takes over from either side."""
    return sorted(file for ending in ("*.json", "*.jinja") for file in folder.glob(ending) if file.name != MANIFEST)
