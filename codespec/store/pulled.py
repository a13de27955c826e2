"""The store of pulled models in the user's data folder; each model is a folder with a manifest."""

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
_ENDINGS = (".lock", ".")  # endings that are invalid in a name


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
        """Path of the model's GGUF file, or of the folder of a model in the Hugging Face layout."""
        return self.folder / self.model

    def write_manifest(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def models_home() -> Path:
    """Return the folder of all pulled models, which may not exist yet; on Linux, it is below XDG_DATA_HOME."""
    return data_folder() / "models"


def folder_of(name: str) -> Path:
    """Return the folder in the store for a model of this name. Raises ConfigError for an invalid name."""
    return models_home() / folder_name(name)


def folder_name(name: str) -> str:
    """Return the folder name for a model name (`owner--name` for `owner/name`). Raises ConfigError if invalid."""
    if not _NAME.fullmatch(name) or ".." in name or "--" in name.partition("/")[0] or name.endswith(_ENDINGS):
        fix = "use letters, digits, '.', '_' and '-', or a hub id (owner/name)"
        raise ConfigError(f"{name!r} is not a valid model name", fix)
    return name.replace("/", "--")


def name_of(folder: str) -> str:
    """Return the model name for a folder name, as the inverse of `folder_name`."""
    return re.sub("--(?=[A-Za-z0-9])", "/", folder, count=1)


def pulled() -> dict[str, Pulled]:
    """Return the manifests of all pulled models, keyed by model name. Folders without a valid manifest are skipped."""
    home = models_home()
    try:
        folders = sorted(path for path in home.iterdir() if not path.name.startswith(".")) if home.is_dir() else []
    except OSError as error:
        raise ConfigError(f"{home} can't be read ({error.strerror})", "check its permissions") from error
    manifests = [manifest for folder in folders if (manifest := read_manifest(folder))]
    return {manifest.name: manifest for manifest in manifests}


def find_pulled(name: str) -> Path | None:
    """Return the folder or GGUF file of the model pulled under this name or hub id, or None if there is none."""
    manifest = read_pulled(name)
    return manifest.path if manifest else None


def read_pulled(name: str) -> Pulled | None:
    """Return the manifest of the model pulled under this name or hub id, or None if there is no such model."""
    entry = find_entry(name)
    try:
        return read_manifest(folder_of(entry.name if entry else name))
    except ConfigError:
        return None


def read_manifest(folder: Path) -> Pulled | None:
    """Return a folder's manifest, or None if it is missing or corrupt, or is for another version or folder."""
    kinds = {"sha256": dict, "bytes": int, "format": int}
    try:
        manifest = Pulled(**read_json_file(folder / MANIFEST))
        typed = all(type(getattr(manifest, field.name)) is kinds.get(field.name, str) for field in fields(manifest))
        ours = typed and manifest.format == FORMAT and folder_name(manifest.name) == folder.name
        plain = ours and Path(manifest.model).name == manifest.model
        return manifest if plain and manifest.path.exists() else None
    except (OSError, ValueError, TypeError, ConfigError):
        return None
