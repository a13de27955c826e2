"""Sources of models: their interface, the file filter and the hashes of all of them, and the user's own files.

Accepts only safetensors weights, the configuration, the tokenizer, licence and card; never pickles or code, and
never a file in a sub-folder or with a name that could lead out of its folder.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from codespec.errors import ConfigError, ModelError
from codespec.store.catalogue import is_gguf
from codespec.store.disk import Say, drop, is_own_file
from codespec.store.pulled import MANIFEST

PARTIAL = ".incomplete"
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,120}")
_WEIGHTS = "model*.safetensors"
_WANTED = (_WEIGHTS, "*.json", "*.jinja", "LICEN[CS]E*", "NOTICE*", "README.md", "USE_POLICY*")
_MAGIC = b"GGUF"
_NEEDED = ("config.json", "tokenizer.json")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True, slots=True)
class PullPlan:
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


class ModelSource(Protocol):
    """One source of a model."""

    @property
    def name(self) -> str:
        """Name of the model in the store."""
        ...

    def plan(self) -> PullPlan:
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
        why, fix = _why_no_weights(files)
        raise ModelError(f"{label} cannot be used because {why}", fix)
    missing = [file for file in _NEEDED if file not in files]
    if missing:
        raise ModelError(f"{label} lacks {' and '.join(missing)}", "choose a complete model in the Hugging Face layout")


def _why_no_weights(files: Collection[str]) -> tuple[str, str]:
    """Return the reason and its fix."""
    if any(fnmatchcase(file, pattern) for file in files for pattern in _PICKLED):
        why = "its weights are pickled, and a pickle can run code when it is loaded"
        return why, "choose one with safetensors files"
    if any(is_gguf(file) for file in files):
        return "it holds GGUF files", "download the one you want and run `codespec models pull FILE.gguf`"
    return "it holds no model*.safetensors", "choose a model in the Hugging Face layout"


def partial_of(folder: Path, name: str, digest: str) -> Path:
    """Return the path of an unfinished file, named by its hash: every source of the same file can resume it."""
    return folder / f"{name}.{digest[:16]}{PARTIAL}"


def is_whole(file: Path, digest: str) -> bool:
    """Return whether the path is an own file with this SHA-256 (or, with 40 digits, git hash)."""
    return is_own_file(file) and _hash_like(digest, file) == digest


def check_file(file: Path, expected: str, label: str) -> None:
    """Delete the file and raise ModelError unless its SHA-256 (or, with 40 digits, git hash) is the expected one."""
    actual = _hash_like(expected, file)
    if actual != expected:
        file.unlink()
        raise wrong_hash(label, actual, expected)


def wrong_hash(label: str, actual: str, expected: str) -> ModelError:
    """Return the error for a file that was deleted because of its hash."""
    kind = "SHA-256" if len(expected) == 64 else "git hash"
    hashes = f"{actual[:16]}… instead of {expected[:16]}…"
    what = f"{label} has another {kind} than it must have ({hashes}) and was deleted"
    return ModelError(what, "pull again, and do not use this source if it stays so")


def sha256_of(file: Path) -> str:
    """Return a file's SHA-256."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _hash_like(expected: str, file: Path) -> str:
    """Return a file's SHA-256, or its git blob hash if `expected` has 40 digits: the hub states it for small files."""
    if len(expected) == 64:
        return sha256_of(file)
    digest = hashlib.sha1(b"blob %d\0" % file.stat().st_size, usedforsecurity=False)
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: digest).hexdigest()


class LocalSource:
    """The user's own GGUF file, or folder in the Hugging Face layout.

    Files are copied, never linked: a later write to the user's file must not change the pulled model.
    """

    def __init__(self, path: Path, name: str = "") -> None:
        self._path = path.resolve()
        self._is_file = path.is_file()
        self.name = name or name_from(path.stem if self._is_file else self._path.name)

    def plan(self) -> PullPlan:
        """Return the plan with the size of the accepted files. Raises ModelError if this is not a complete model."""
        size = sum(file.stat().st_size for file in self._files())
        return PullPlan(str(self._path), "", size)  # the converter checks its own disk space

    def fetch(self, folder: Path, say: Say) -> Fetched:
        """Copy the accepted files, replacing leftovers of an earlier attempt."""
        files = self._files()
        for file in files:
            drop(folder / file.name)
            shutil.copyfile(file.resolve(), folder / file.name)
        say(f"{self.name}: taken in from {self._path}")
        digests = {file.name: sha256_of(folder / file.name) for file in files}
        return Fetched(self._path.name if self._is_file else "", digests)

    def digests(self) -> dict[str, str]:
        """Return the current SHA-256 of each accepted file."""
        return {file.name: sha256_of(file) for file in self._files()}

    def _files(self) -> list[Path]:
        try:
            if self._is_file:
                with self._path.open("rb") as stream:
                    if stream.read(len(_MAGIC)) == _MAGIC:
                        return [self._path]
                fix = "give one, or a folder in the Hugging Face layout"
                raise ModelError(f"{self._path} is not a GGUF file", fix)
            files = sorted(path for path in self._path.iterdir() if path.is_file())
        except OSError as error:
            raise ModelError(f"{self._path} can't be read ({error.strerror})", "check its path") from error
        check_complete([file.name for file in files], str(self._path))
        return [file for file in files if is_wanted(file.name)]


def name_from(stem: str) -> str:
    """Return a model name derived from a file name. Raises ConfigError if no characters remain."""
    name = re.sub(r"-{2,}", "-", re.sub(r"[^a-z0-9._-]+|\.{2,}", "-", stem.lower())).strip("-._")
    if not name:
        raise ConfigError(f"{stem!r} gives no name for a model", "choose one with --name")
    return name
