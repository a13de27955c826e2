"""The store of pulled models: each is a folder with a manifest, in the user's data folder."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from codespec.api.limits import MODEL_NAME
from codespec.errors import ConfigError
from codespec.files import read_json_file
from codespec.store.catalogue import find_entry
from codespec.user_folders import data_folder

MANIFEST = "codespec_model.json"
FORMAT = 1
_NAME = re.compile(f"{MODEL_NAME}(/{MODEL_NAME})?")
_ENDINGS = (".lock", ".")  # invalid ends of a name


@dataclass(frozen=True, slots=True)
class Pulled:
    """The manifest of a pulled model."""

    name: str
    source: str  # a package and its version, a hub id and its commit, or a path
    licence: str  # as the source states it; "": not stated
    model: str  # the GGUF file in the folder; "": the folder is a model in the Hugging Face layout
    sha256: dict[str, str]  # by file name
    bytes: int  # size of all files
    date: str  # time of the pull in UTC
    format: int = FORMAT

    @property
    def folder(self) -> Path:
        return folder_of(self.name)

    @property
    def path(self) -> Path:
        """The model's GGUF file, or its folder."""
        return self.folder / self.model

    def write_manifest(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def models_home() -> Path:
    """Return the parent of the pulled models' folders (on Linux below XDG_DATA_HOME), which may not exist yet."""
    return data_folder() / "models"


def folder_of(name: str) -> Path:
    """Return the folder that a model of this name has in the store. Raises ConfigError for an invalid name."""
    return models_home() / folder_name(name)


def folder_name(name: str) -> str:
    """Return the name of a model's folder; `owner/name` becomes owner--name.

    Raises ConfigError for an invalid name, such as one that would lead out of the store.
    """
    if not _NAME.fullmatch(name) or ".." in name or "--" in name.partition("/")[0] or name.endswith(_ENDINGS):
        fix = "use letters, digits, '.', '_' and '-', or owner/name of the hub"
        raise ConfigError(f"{name!r} can't be the name of a model", fix)
    return name.replace("/", "--")


def name_of(folder: str) -> str:
    """Return the name of the model in a folder, as the inverse of `folder_name`."""
    return re.sub("--(?=[A-Za-z0-9])", "/", folder, count=1)


def pulled() -> dict[str, Pulled]:
    """Return the manifests of all pulled models by name. Folders without a valid manifest are left out."""
    home = models_home()
    try:
        folders = sorted(path for path in home.iterdir() if not path.name.startswith(".")) if home.is_dir() else []
    except OSError as error:
        raise ConfigError(f"{home} can't be read ({error.strerror})", "check its permissions") from error
    manifests = [manifest for folder in folders if (manifest := read_manifest(folder))]
    return {manifest.name: manifest for manifest in manifests}


def find_pulled(name: str) -> Path | None:
    """Return the path of the model pulled under this name or hub id, a folder or a GGUF file; None if there is none."""
    manifest = read_pulled(name)
    return manifest.path if manifest else None


def read_pulled(name: str) -> Pulled | None:
    """Return the manifest of the model pulled under this name or hub id, or None if there is none."""
    entry = find_entry(name)
    try:
        return read_manifest(folder_of(entry.name if entry else name))
    except ConfigError:
        return None


def read_manifest(folder: Path) -> Pulled | None:
    """Return a folder's manifest, or None if it is missing, corrupt, of another version or of another folder."""
    kinds = {"sha256": dict, "bytes": int, "format": int}
    try:
        manifest = Pulled(**read_json_file(folder / MANIFEST))
        typed = all(type(getattr(manifest, field.name)) is kinds.get(field.name, str) for field in fields(manifest))
        ours = typed and manifest.format == FORMAT and folder_name(manifest.name) == folder.name
        plain = ours and Path(manifest.model).name == manifest.model
        return manifest if plain and manifest.path.exists() else None
    except (OSError, ValueError, TypeError, ConfigError):
        return None
