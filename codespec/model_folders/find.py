"""Find the folder of a model by its name on the command line.

A name is a local folder, a GGUF file, an adapter, a pulled model, or a snapshot from the hub. `owner/name` always
means the hub and a catalogue name always means that model, whatever the working directory: a folder of that name in
a project is never used instead.
"""

from __future__ import annotations

import re
from pathlib import Path

from codespec.catalogue.entries import find_entry
from codespec.catalogue.store import find_pulled
from codespec.config import SHIPPED, EngineConfig
from codespec.errors import ModelError
from codespec.model_folders.conversions import (
    ADAPTER_WEIGHTS,
    TEXTS,
    base_model_name,
    check_adapter,
    convert_gguf,
    convert_to_int8,
    int8_recipe,
    is_adapter,
    is_gguf,
    kept_gguf,
    merge_adapter,
)  # fmt: skip
from codespec.model_folders.weights import read_header
from codespec.text.control_tokens import read_json

ANY = "any"  # number format for callers that read only the configuration and the tokenizer
# Files of a hub repository that the engine needs; other formats of the same weights are not downloaded.
_WANTED = [*TEXTS, "model*.safetensors", ADAPTER_WEIGHTS]
_HUB_ID = re.compile(r"[^./~\\:][^/\\:]*/[^/\\]+")


def check_models(config: EngineConfig) -> None:
    """Raise ModelError if a configuration names a missing or unusable model, before the slow import of torch.

    Covers a model that is not on this machine, a folder without a model or with truncated files, and an unusable
    adapter. Does not look up hub ids or convert anything.
    """
    drafter = config.drafter if config.asks_drafter else "none"
    for name in (config.target, drafter):
        place = find_local(name) if name != "none" else None
        if place and is_adapter(place):
            check_adapter(place)
        elif place and place.is_dir():
            check_folder(place)
            for name in ("config.json", "tokenizer.json"):
                read_json(place / name)  # the loader reads them too, but later


def check_folder(folder: Path) -> None:
    """Raise ModelError for a folder without configuration or weights, and for truncated files."""
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json: give a folder in the Hugging Face layout.")
    weights = sorted(folder.glob("*.safetensors"))  # includes files beside the model's own
    if not weights:
        raise ModelError(f"{folder} has no *.safetensors weights: convert the model (pickled weights are not read).")
    for file in weights:
        read_header(file)


def find_folder(name: str, dtype: str = ANY) -> Path:
    """Return the folder of a model in a number format. Raises ModelError if it is neither here nor on the hub.

    A GGUF file is converted once, which takes seconds to a minute: to int8 if that is the format and the architecture
    allows it, else to float32. ANY takes the float folder if it is cached, else acts like int8. An adapter is merged
    into its model, and so is the catalogue's adapter for a model. Other folders are converted for int8 only.
    """
    local = find_local(name)
    entry = find_entry(name)
    adapted = (entry is not None and entry.adapter) or (local is not None and local.is_dir() and is_adapter(local))
    if dtype in ("int8", ANY) and local is not None and local.is_file() and not adapted:
        converted = (kept_gguf(local) if dtype == ANY else None) or convert_to_int8(local)
        if converted is not None:
            return converted
    folder = _find_float(name)
    if dtype not in ("int8", ANY):
        return _demand_float(folder)
    return (convert_to_int8(folder) or folder) if dtype == "int8" else folder


def _find_float(name: str) -> Path:
    """Return the folder of a model's float weights, with its adapter merged in if it has one."""
    folder = find_base_folder(name)
    if is_adapter(folder):
        base = base_model_name(folder)
        return merge_adapter(_demand_float(find_base_folder(base)), folder)
    entry = find_entry(name)
    return merge_adapter(folder, SHIPPED / entry.adapter) if entry and entry.adapter else folder


def _demand_float(folder: Path) -> Path:
    """Return the folder. Raises ModelError if its weights were converted to int8."""
    if int8_recipe(read_json(folder / "config.json")):
        raise ModelError(f"{folder} holds int8 weights: set dtype int8, or give the model that it was made from.")
    return folder


def find_base_folder(name: str) -> Path:
    """Return the folder of a model without the catalogue's adapter, or of an adapter without its model."""
    local = find_local(name)
    if local is None:
        return _fetch(name)
    return local if local.is_dir() else convert_gguf(local)


def find_local(name: str) -> Path | None:
    """Return the folder or GGUF file of a name without querying the hub or its cache; None for an unpulled hub id.

    Raises ModelError for any other name that cannot be resolved.
    """
    path, hub = Path(name).expanduser(), is_hub_id(name)
    pulled = find_pulled(name) if hub or "/" not in name else None
    if pulled is not None:  # takes precedence over a folder of the same name
        return pulled
    if hub and path.exists():
        raise ModelError(f"{name} means a model of the hub, and here is a folder of that name: write ./{name}.")
    if hub:
        return None
    if find_entry(name) is None and (path.is_dir() or (is_gguf(path) and path.is_file())):
        return path
    raise ModelError(_why_missing(name, path))


def is_hub_id(name: str) -> bool:
    """Return whether a name is `owner/model`."""
    return _HUB_ID.fullmatch(name) is not None and not is_gguf(Path(name))


def looks_local(name: str) -> bool:
    """Return whether `name` needs no hub query: False for a hub id that is neither pulled nor a path here."""
    return not is_hub_id(name) or Path(name).exists() or find_pulled(name) is not None


def find_fetched(name: str) -> Path | None:
    """Return the folder of a hub id in the hub client's cache, or None, without querying the hub."""
    from huggingface_hub import snapshot_download

    try:
        return Path(str(snapshot_download(name, allow_patterns=_WANTED, local_files_only=True)))
    except (OSError, ValueError):
        return None


def _why_missing(name: str, path: Path) -> str:
    if path.is_relative_to(SHIPPED):
        return (
            f"The model {path.name} that ships with codespec is not installed: run `pip install ./weights` in "
            "codespec's checkout, or give --target and --drafter."
        )
    if find_entry(name) is not None:
        here = f", or write ./{name} for the folder" if path.is_dir() else ""
        return f"{name} has not been pulled: run `codespec models pull {name}`{here}."
    if path.is_file():
        return f"{path} is a file, not a model folder: give a folder, a .gguf file or a hub id."
    if is_gguf(path):
        return f"There is no file {path}: check the path."
    return f"There is no model folder {path}: give a folder in the Hugging Face layout, a .gguf file or a hub id."


def _fetch(name: str) -> Path:
    """Download a hub id's files into the hub client's cache, which transformers reads too."""
    from huggingface_hub import snapshot_download

    try:
        return Path(str(snapshot_download(name, allow_patterns=_WANTED)))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{name} is no folder here and the hub does not give it ({_first_line(error)}): check the name and the "
            "network, or give a local folder."
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160].rstrip(" .")
