"""The GGUF file that a target was read from, so that llama.cpp can run the very file that a user has.

Knows a converted model's config.json, adapters' folders and what is pulled; runs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from codespec.catalogue.conversion_cache import SOURCE
from codespec.catalogue.store import pulled
from codespec.model_folders.conversions import base_model_name, is_adapter, is_gguf, source_quantization
from codespec.model_folders.find import find_folder, find_local
from codespec.text.control_tokens import read_json


@dataclass(frozen=True, slots=True)
class Original:
    """A GGUF file, and the format in which it stores most weights ("Q4_1")."""

    file: Path
    kind: str


def find_original(target: str) -> Original | None:
    """The file that `target` names or was converted from; None where it comes from no GGUF file, or the file is gone.

    Where an adapter was merged into the target, the file is the model without it.
    """
    config = read_json(find_folder(target) / "config.json")
    kind = source_quantization(config)
    if not kind:
        return None
    there = find_local(target)
    if there is not None and is_adapter(there):
        there = find_local(base_model_name(there))
    if there is not None and is_gguf(there):
        return Original(there, kind)
    digest = config[SOURCE].get("sha256")
    kept = [model.path for model in pulled().values() if digest in model.sha256.values() and is_gguf(model.path)]
    return Original(kept[0], kind) if kept else None
