"""Resolve a model's name to its files on this machine, and to a folder that can be loaded.

A name is a local folder, a GGUF file, an adapter, a pulled model, or a snapshot from the hub. `owner/name` always
means the hub and a catalogue name always means that model, whatever the working directory: a folder of that name in
a project is never used instead.
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
ANY = "any"  # number format for callers that read only the configuration and the tokenizer
# Files of a hub repository that the engine needs; other formats of the same weights are not downloaded.
_WANTED = [*TEXTS, "model*.safetensors", ADAPTER_WEIGHTS]


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model's name and its files on this machine.

    name   as the settings give it
    form   the form of its weights; "hub": a hub id that has not been pulled
    path   its folder or its GGUF file; None for the form "hub"
    entry  its entry in the catalogue, or None
    """

    name: str
    form: Literal["folder", "adapter", "gguf", "hub"]
    path: Path | None
    entry: Entry | None

    @property
    def dtype(self) -> str:
        """Number format of the weights if the settings name none."""
        return self.entry.dtype if self.entry else EngineConfig().dtype

    def open(self, dtype: str) -> ModelFiles:
        """Return the files to load for a number format, checked. Raises ModelError.

        The native kernels read a GGUF file's own bits; for other formats it is converted once, as an adapter is merged.
        """
        return ModelFiles.of(self, self.source() if dtype == NATIVE else self.folder(dtype))

    def folder(self, dtype: str = ANY) -> Path:
        """Return the folder of the model in a number format. Raises ModelError if the hub does not give it.

        A GGUF file is converted to float32 once, which takes seconds to a minute. ANY needs no weights: a GGUF file's
        configuration and tokenizer. An adapter is merged into its model, and so is the catalogue's adapter for a model.
        """
        file = self._plain_file()
        return texts_of(file) if file is not None and dtype == ANY else self._float_folder()

    def source(self) -> Path:
        """Return what the native kernels read: the GGUF file itself, or the folder of the float weights."""
        return self._plain_file() or self._float_folder()

    def base_folder(self) -> Path:
        """Return the folder of a model without the catalogue's adapter, or of an adapter without its model.

        A GGUF file is converted.
        """
        if self.path is None:
            return _fetch(self.name)
        return convert_gguf(self.path) if self.form == "gguf" else self.path

    def _plain_file(self) -> Path | None:
        """Return the GGUF file of a model without the catalogue's adapter, else None."""
        return self.path if self.form == "gguf" and not (self.entry and self.entry.adapter) else None

    def fetched(self) -> Path | None:
        """Return the folder or file; for a hub id, the folder in the hub client's cache, or None. Queries no hub."""
        if self.path is not None:
            return self.path
        try:
            return _snapshot(self.name, local_files_only=True)
        except (OSError, ValueError):
            return None

    def _float_folder(self) -> Path:
        """Return the folder of the float weights, with an adapter merged in if there is one."""
        folder = self.base_folder()
        if is_adapter(folder):
            return merge_adapter(resolve(base_model_name(folder)).base_folder(), folder)
        return merge_adapter(folder, SHIPPED / self.entry.adapter) if self.entry and self.entry.adapter else folder


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model that is about to be loaded, opened once: every later step reads what is here.

    path     its GGUF file, or the folder of its float weights
    config   the folder's config.json; {} for a GGUF file
    layouts  the tensors of each of the folder's weight files, as `read_layout` returns them
    """

    ref: ModelRef
    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    layouts: Mapping[Path, Layout] = field(default_factory=dict)

    @classmethod
    def of(cls, ref: ModelRef, path: Path) -> ModelFiles:
        """Open a file, or a folder. Raises ModelError for one without configuration or weights, or a truncated file."""
        if path.is_file():
            return cls(ref, path)
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} has no config.json", "give a folder in the Hugging Face layout")
        weights = sorted(path.glob("*.safetensors"))  # includes files beside the model's own
        if not weights:
            fix = "convert the model (pickled weights are not read)"
            raise ModelError(f"{path} has no *.safetensors weights", fix)
        layouts = {file: read_layout(file) for file in weights}
        return cls(ref, path, read_json(path / "config.json"), layouts)


@dataclass(frozen=True, slots=True)
class PairFiles:
    """The files of the configured target, and of its drafter if there is one."""

    target: ModelFiles
    drafter: ModelFiles | None


def open_pair(config: EngineConfig) -> PairFiles:
    """Resolve the configured models and open their files. Raises ModelError."""
    drafts = config.drafter != "none" and config.asks_drafter
    target = resolve(config.target).open(config.dtype)
    return PairFiles(target, resolve(config.drafter).open(config.drafter_dtype) if drafts else None)


def resolve(name: str) -> ModelRef:
    """Resolve a name without querying the hub or its cache.

    Raises ModelError for a name that is neither on this machine nor a hub id.
    """
    try:
        path, hub = Path(name).expanduser(), is_hub_id(name)
        path.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, a forbidden folder, an unknown user
        why = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"The model {name[:80]} can't be looked up ({why})", "check its name or path") from error
    entry = find_entry(name)
    pulled = find_pulled(name) if hub or "/" not in name else None
    if pulled is not None:  # takes precedence over a folder of the same name
        return _local(name, pulled, entry)
    if hub and path.exists():
        what = f"{name} means a model of the hub, but a folder here has that name"
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
        return ModelError(f"The model {path.name} that ships with codespec is not installed", fix)
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
    """Download a hub id's files into the hub client's cache, which transformers reads too."""
    try:
        return _snapshot(name)
    except (OSError, ValueError) as error:
        what = f"{name} is not a folder here, and the hub does not provide it ({first_line(error)})"
        raise ModelError(what, "check the name and the network, or give a local folder") from error


def _snapshot(name: str, **settings: Any) -> Path:
    from huggingface_hub import snapshot_download

    return Path(str(snapshot_download(name, allow_patterns=_WANTED, **settings)))
