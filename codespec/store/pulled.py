"""Store of pulled models: one folder each in the user's data folder, with a manifest.

Fetches nothing and reads no weights.
"""

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
# Name of a folder; the hub's `owner/name` becomes owner--name.
_NAME = re.compile(f"{MODEL_NAME}(/{MODEL_NAME})?")
_ENDINGS = (".lock", ".")  # a name must not end like this


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model on this machine.

    name     name in codespec
    source   source of the pull: a package and its version, a hub id with its commit, or a path
    licence  as its source states it; "" if it states none
    model    file in the folder that is the model (`….gguf`); "": the folder itself, in the Hugging Face layout
    sha256   SHA-256 by file
    bytes    total size of all files
    date     time of the pull, UTC
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
        """Folder of the model."""
        return folder_of(self.name)

    @property
    def path(self) -> Path:
        """Path to load: the folder, or the file in it."""
        return self.folder / self.model

    def write_manifest(self, folder: Path) -> None:
        """Write the manifest into a folder."""
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def models_home() -> Path:
    """Return the folder of all pulled models; on Linux below XDG_DATA_HOME. It may not exist yet."""
    return data_folder() / "models"


def folder_of(name: str) -> Path:
    """Return the folder of a pulled model with this name. Raises ConfigError for an invalid name."""
    return models_home() / folder_name(name)


def folder_name(name: str) -> str:
    """Return the folder name of a model. Raises ConfigError for an invalid name, so no name leaves the store."""
    if not _NAME.fullmatch(name) or ".." in name or "--" in name.partition("/")[0] or name.endswith(_ENDINGS):
        raise ConfigError(
            f"{name!r} cannot be a model's name", "write letters, digits, '.', '_' and '-', or owner/name of the hub"
        )
    return name.replace("/", "--")


def name_of(folder: str) -> str:
    """Return the model's name, the inverse of `folder_name`."""
    return re.sub("--(?=[A-Za-z0-9])", "/", folder, count=1)


def pulled() -> dict[str, Pulled]:
    """Return all pulled models by name, without folders that lack a readable manifest."""
    home = models_home()
    try:
        folders = sorted(path for path in home.iterdir() if not path.name.startswith(".")) if home.is_dir() else []
    except OSError as error:
        raise ConfigError(f"{home} can't be read ({error.strerror})", "check its permissions") from error
    manifests = [manifest for folder in folders if (manifest := read_manifest(folder))]
    return {manifest.name: manifest for manifest in manifests}


def find_pulled(name: str) -> Path | None:
    """Return the path of a pulled model: a folder in the Hugging Face layout or a `.gguf` file, or None if absent.

    A catalogue name and its hub id mean the same model.
    """
    manifest = read_pulled(name)
    return manifest.path if manifest else None


def read_pulled(name: str) -> Pulled | None:
    """Return the manifest of a pulled model, by its name or hub id, or None."""
    entry = find_entry(name)
    try:
        return read_manifest(folder_of(entry.name if entry else name))
    except ConfigError:
        return None


def read_manifest(folder: Path) -> Pulled | None:
    """Return a folder's manifest, or None if it is missing, of another version or type, or of another folder."""
    kinds = {"sha256": dict, "bytes": int, "format": int}
    try:
        manifest = Pulled(**read_json_file(folder / MANIFEST))
        typed = all(type(getattr(manifest, field.name)) is kinds.get(field.name, str) for field in fields(manifest))
        ours = typed and manifest.format == FORMAT and folder_name(manifest.name) == folder.name
        plain = ours and Path(manifest.model).name == manifest.model
        return manifest if plain and manifest.path.exists() else None
    except (OSError, ValueError, TypeError, ConfigError):
        return None
