"""From a name on the command line to a folder with a model's files: a local folder, or a snapshot from the hub.

Knows paths and the hub's client; knows nothing of what the files say.
"""

from __future__ import annotations

from pathlib import Path

from codespec.config import STARTER
from codespec.errors import ModelError

# What the engine needs of a hub repository; other formats of the same weights stay there.
_WANTED = ["*.json", "model*.safetensors"]


def find_folder(name: str) -> Path:
    """The folder of a model; ModelError in one sentence if there is none or the hub does not give it."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name.startswith(str(STARTER)):
        raise ModelError(
            "The starter pair is not in this installation: reinstall codespec, or give --target and --drafter."
        )
    if looks_local(name):
        raise ModelError(f"There is no model folder {folder}: give a folder in the Hugging Face layout or a hub id.")
    return _fetch(name)


def looks_local(name: str) -> bool:
    """Whether `name` means a folder rather than a hub id (`owner/model`)."""
    return (
        Path(name).expanduser().exists() or name.startswith((".", "/", "~")) or name.count("/") > 1 or "/" not in name
    )


def find_fetched(name: str) -> Path | None:
    """A hub id's folder if its files are on this machine already; asks nobody else."""
    from huggingface_hub import snapshot_download

    try:
        return Path(str(snapshot_download(name, allow_patterns=_WANTED, local_files_only=True)))
    except (OSError, ValueError):
        return None


def _fetch(name: str) -> Path:
    """The hub's files in its own cache, where transformers finds them again."""
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
