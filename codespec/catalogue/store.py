"""Where pulled models lie: one folder each in the user's data folder, with a manifest that says what they are.

Knows names, folders and manifests; fetches nothing and reads no weights.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from codespec.bounded_json import read_json_file
from codespec.catalogue.entries import find_entry
from codespec.errors import ConfigError
from codespec.user_folders import data_folder

MANIFEST = "codespec_model.json"
FORMAT = 1
# A folder's name; `owner/name` of the hub becomes owner--name.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
_ENDINGS = (".lock", ".")  # no model is called so


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model on this machine.

    name     what users write
    source   what it was pulled from: a package and its version, a hub id with its commit, a path
    licence  as its source states it; "" where none is stated
    model    the file in the folder that is the model (`….gguf`); "": the folder itself, in the Hugging Face layout
    sha256   by file
    bytes    of all files
    date     of the pull, UTC
    """

    name: str
    source: str
    licence: str
    model: str
    sha256: dict[str, str]
    bytes: int
    date: str
    format: int = FORMAT

    @property
    def folder(self) -> Path:
        """Its folder."""
        return folder_of(self.name)

    @property
    def path(self) -> Path:
        """What is loaded: the folder, or the file in it."""
        return self.folder / self.model if self.model else self.folder

    def write_manifest(self, folder: Path) -> None:
        """Writes down in a folder what lies there."""
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def models_home() -> Path:
    """The folder of all pulled models; on Linux below XDG_DATA_HOME. It may not exist yet."""
    return data_folder() / "models"


def folder_of(name: str) -> Path:
    """Where a model of this name lies once it is pulled. ConfigError for what cannot be a name."""
    return models_home() / folder_name(name)


def folder_name(name: str) -> str:
    """The folder's own name. ConfigError for what cannot be a name: no name leaves the folder of models."""
    if not _NAME.fullmatch(name) or ".." in name or "--" in name.partition("/")[0] or name.endswith(_ENDINGS):
        raise ConfigError(
            f"{name!r} cannot be a model's name: write letters, digits, '.', '_' and '-', or owner/name of the hub."
        )
    return name.replace("/", "--")


def name_of(folder: str) -> str:
    """The name whose `folder_name` this is."""
    return re.sub("--(?=[A-Za-z0-9])", "/", folder, count=1)


def pulled() -> dict[str, Pulled]:
    """All pulled models by name. A folder without a readable manifest is none."""
    home = models_home()
    try:
        folders = sorted(path for path in home.iterdir() if not path.name.startswith(".")) if home.is_dir() else []
    except OSError as error:
        raise ConfigError(f"{home} can't be read ({error.strerror}): check its permissions.") from error
    found = [manifest for folder in folders if (manifest := read_manifest(folder))]
    return {manifest.name: manifest for manifest in found}


def find_pulled(name: str) -> Path | None:
    """What a pulled model is: a folder in the Hugging Face layout, or a `.gguf` file; None if it is not there.

    A catalogue name and its hub id mean the same model.
    """
    manifest = read_pulled(name)
    return manifest.path if manifest else None


def read_pulled(name: str) -> Pulled | None:
    """The manifest of a pulled model by its name or hub id."""
    entry = find_entry(name)
    try:
        return read_manifest(folder_of(entry.name if entry else name))
    except ConfigError:
        return None


def read_manifest(folder: Path) -> Pulled | None:
    """What a folder's manifest says; None if there is none, or it does not fit what lies there."""
    try:
        values: dict[str, Any] = read_json_file(folder / MANIFEST)
        manifest = Pulled(**values)
        return manifest if _fits(manifest, folder) else None
    except (OSError, ValueError, TypeError, ConfigError):
        return None


def _fits(manifest: Pulled, folder: Path) -> bool:
    """Whether a manifest is of this version, has values of the right types, and is about this folder."""
    kinds = {"sha256": dict, "bytes": int, "format": int}
    typed = all(type(getattr(manifest, field.name)) is kinds.get(field.name, str) for field in fields(manifest))
    return (
        typed
        and manifest.format == FORMAT
        and folder_name(manifest.name) == folder.name
        and Path(manifest.model).name == manifest.model
        and manifest.path.exists()
    )
