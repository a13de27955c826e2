"""Resolve a model's name to the files to load.

A model name is the path of a folder, GGUF file or adapter, the name of a pulled model, or a hub id. A catalogue name or
hub id (`owner/name`) is never used as a relative path: the user must write `./name` for a folder of that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from codespec.api.config import SHIPPED, EngineConfig
from codespec.errors import ModelError, first_line
from codespec.files import read_json
from codespec.store.catalogue import Entry, find_entry, is_gguf, is_hub_id
from codespec.store.conversions import (
    ADAPTER_WEIGHTS,
    TEXTS,
    base_model_name,
    convert_gguf,
    is_adapter,
    merge_adapter,
    texts_of,
)
from codespec.store.model_folder import Layout, read_layout
from codespec.store.pulled import find_pulled

NATIVE = "native"
ANY = "any"  # number format of callers that read no weights
# Files to download from a hub repository; not other formats of the same weights.
_WANTED = [*TEXTS, "model*.safetensors", ADAPTER_WEIGHTS]


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model name, and the location of the model's files."""

    name: str  # as given, for example in the settings
    form: Literal["folder", "adapter", "gguf", "hub"]  # hub: a hub id that has not been pulled
    path: Path | None  # its folder or GGUF file; None: on the hub
    entry: Entry | None  # in the catalogue

    @property
    def dtype(self) -> str:
        """The number format of the model if the settings specify none."""
        return self.entry.dtype if self.entry else EngineConfig().dtype

    def open(self, dtype: str) -> ModelFiles:
        """Return the files to load for a number format, converted or merged if necessary. Raises ModelError."""
        return ModelFiles.of(self, self.source() if dtype == NATIVE else self.folder(dtype))

    def folder(self, dtype: str = ANY) -> Path:
        """Return a folder of float weights, converted or merged if necessary; for ANY, it may have no weights."""
        file = self._plain_file()
        return texts_of(file) if file is not None and dtype == ANY else self._float_folder()

    def source(self) -> Path:
        """Return the path that the native kernels read: the GGUF file itself, or the folder of the float weights."""
        return self._plain_file() or self._float_folder()

    def base_folder(self) -> Path:
        """Return the model's folder without merging an adapter. GGUF files are converted; hub models are downloaded."""
        if self.path is None:
            return _fetch(self.name)
        return convert_gguf(self.path) if self.form == "gguf" else self.path

    def _plain_file(self) -> Path | None:
        """Return the path of the model's GGUF file if the model has one and needs no adapter, else None."""
        return self.path if self.form == "gguf" and not (self.entry and self.entry.adapter) else None

    def fetched(self) -> Path | None:
        """Return the model's local folder or file, possibly in the hub client's cache, or None if there is none."""
        if self.path is not None:
            return self.path
        try:
            return _snapshot(self.name, local_files_only=True)
        except (OSError, ValueError):
            return None

    def _float_folder(self) -> Path:
        """Return the folder of the float weights, with the adapter merged in if the model has one."""
        folder = self.base_folder()
        if is_adapter(folder):
            return merge_adapter(resolve(base_model_name(folder)).base_folder(), folder)
        return merge_adapter(folder, SHIPPED / self.entry.adapter) if self.entry and self.entry.adapter else folder


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files to load for a model. The configuration and headers are read once and used by all later steps."""

    ref: ModelRef
    path: Path  # a GGUF file, or a folder of float weights
    config: Mapping[str, Any] = field(default_factory=dict)  # the folder's config.json; {} for a GGUF file
    layouts: Mapping[Path, Layout] = field(default_factory=dict)  # of each weight file in the folder

    @classmethod
    def of(cls, ref: ModelRef, path: Path) -> ModelFiles:
        """Read a folder's configuration and weight headers, but no GGUF file. Raises ModelError for corrupt files."""
        if path.is_file():
            return cls(ref, path)
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} has no config.json", "give a folder in the Hugging Face layout")
        weights = sorted(path.glob("*.safetensors"))  # includes files beside the model's own
        if not weights:
            fix = "convert the model to safetensors (pickled weights are not read)"
            raise ModelError(f"{path} has no *.safetensors weights", fix)
        layouts = {file: read_layout(file) for file in weights}
        return cls(ref, path, read_json(path / "config.json"), layouts)


@dataclass(frozen=True, slots=True)
class PairFiles:
    """The files of the configured target and drafter."""

    target: ModelFiles
    drafter: ModelFiles | None


def open_pair(config: EngineConfig) -> PairFiles:
    """Resolve the configured models and read their files. Raises ModelError."""
    drafts = config.drafter != "none" and config.asks_drafter
    target = resolve(config.target).open(config.dtype)
    return PairFiles(target, resolve(config.drafter).open(config.drafter_dtype) if drafts else None)


def resolve(name: str) -> ModelRef:
    """Resolve a model name without a request to the hub; raise ModelError unless it is a local model or a hub id."""
    try:
        path, hub = Path(name).expanduser(), is_hub_id(name)
        path.exists()
    except (OSError, RuntimeError) as error:  # the name is too long, a folder is not readable, a user is unknown
        why = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"The model {name[:80]} can't be looked up ({why})", "check its name or path") from error
    entry = find_entry(name)
    pulled = find_pulled(name) if hub or "/" not in name else None
    if pulled is not None:  # even if there is a folder of this name
        return _local(name, pulled, entry)
    if hub and path.exists():
        what = f"{name} is both a hub id and the path of a folder"
        raise ModelError(what, f"write ./{name} for the folder")
    if hub:
        return ModelRef(name, "hub", None, entry)
    if entry is None and (path.is_dir() or (is_gguf(name) and path.is_file())):
        return _local(name, path, entry)
    raise _missing(name, path)


def _local(name: str, path: Path, entry: Entry | None) -> ModelRef:
    if path.is_file():
        return ModelRef(name, "gguf", path, entry)
    return ModelRef(name, "adapter" if is_adapter(path) else "folder", path, entry)


def _missing(name: str, path: Path) -> ModelError:
    if path.is_relative_to(SHIPPED):
        fix = "run `pip install ./weights` in codespec's checkout, or give --target and --drafter"
        return ModelError(f"codespec's own model {path.name} is not installed", fix)
    if find_entry(name) is not None:
        here = f", or write ./{name} for the folder" if path.is_dir() else ""
        return ModelError(f"{name} has not been pulled", f"run `codespec models pull {name}`{here}")
    if path.is_file():
        return ModelError(f"{path} is a file, not a model folder", "give a folder, a .gguf file or a hub id")
    if is_gguf(name):
        return ModelError(f"There is no file {path}", "check the path")
    fix = "give a folder in the Hugging Face layout, a .gguf file or a hub id"
    return ModelError(f"There is no model folder {path}", fix)


def _fetch(name: str) -> Path:
    try:
        return _snapshot(name)
    except (OSError, ValueError) as error:
        what = f"{name} is not a local folder and can't be downloaded from the hub ({first_line(error)})"
        raise ModelError(what, "check the name and the network, or give a local folder") from error


def _snapshot(name: str, **settings: Any) -> Path:
    from huggingface_hub import snapshot_download

    return Path(str(snapshot_download(name, allow_patterns=_WANTED, **settings)))
