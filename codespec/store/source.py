"""Define model sources, filter and verify the files of a model, and provide local files as a model source.

The file filter accepts safetensors weights, configuration, tokenizer, licence and model card, but no pickles or code.
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
    """The result of querying a model source before a pull."""

    label: str  # the source, as recorded in the manifest
    licence: str  # as the source states it; "": not stated
    size: int  # bytes to download or to copy
    room: int = 0  # additional bytes of disk, for unpacking or conversion
    note: str = ""  # a clause for the user about the source; "": none


@dataclass(frozen=True, slots=True)
class Fetched:
    """The model files that a complete pull has stored."""

    model: str  # the GGUF file; "": the folder is the model
    sha256: dict[str, str]  # by file name


class ModelSource(Protocol):
    """A source of a model."""

    @property
    def name(self) -> str:
        """The model's name in the store."""

    def plan(self) -> PullPlan:
        """Query the source; raise ModelError if the source does not provide the model."""

    def fetch(self, folder: Path, say: Say) -> Fetched:
        """Download or copy the files into a folder, which may contain files of an earlier pull, and verify them."""


def is_wanted(file: str) -> bool:
    """Return whether the file filter accepts a file with this name."""
    plain = bool(_PLAIN.fullmatch(file)) and file != MANIFEST
    return plain and any(fnmatchcase(file, pattern) for pattern in _WANTED)


def check_complete(files: Collection[str], label: str) -> None:
    """Raise ModelError unless these files form a complete model in the Hugging Face layout."""
    if not any(is_wanted(file) and fnmatchcase(file, _WEIGHTS) for file in files):
        if any(fnmatchcase(file, pattern) for file in files for pattern in _PICKLED):
            why = "its weights are pickled, and a pickle can run code when it is loaded"
            fix = "choose a model with safetensors files"
        elif any(is_gguf(file) for file in files):
            why, fix = "it contains GGUF files", "download one and run `codespec models pull FILE.gguf`"
        else:
            why, fix = "it contains no model*.safetensors", "choose a model in the Hugging Face layout"
        raise ModelError(f"{label} can't be used because {why}", fix)
    missing = [file for file in _NEEDED if file not in files]
    if missing:
        raise ModelError(f"{label} lacks {' and '.join(missing)}", "choose a complete model in the Hugging Face layout")


def partial_of(folder: Path, name: str, digest: str) -> Path:
    """Return the path of a partial file, whose name contains the expected hash so that any source can resume it."""
    return folder / f"{name}.{digest[:16]}{PARTIAL}"


def is_whole(file: Path, digest: str) -> bool:
    """Return whether the path is a regular file, not a link, with this SHA-256 or 40-digit git hash."""
    return is_own_file(file) and _hash_like(digest, file) == digest


def check_file(file: Path, expected: str, label: str) -> None:
    """Delete the file and raise ModelError unless it has the expected SHA-256 or 40-digit git hash."""
    actual = _hash_like(expected, file)
    if actual != expected:
        file.unlink()
        raise wrong_hash(label, actual, expected)


def wrong_hash(label: str, actual: str, expected: str) -> ModelError:
    """Return the error for a file that was deleted because of a wrong hash."""
    kind = "SHA-256" if len(expected) == 64 else "git hash"
    what = f"{label} was deleted because it has the wrong {kind} ({actual[:16]}… instead of {expected[:16]}…)"
    return ModelError(what, "pull again, and do not use this source if the hash is wrong again")


def sha256_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _hash_like(expected: str, file: Path) -> str:
    """Return a file's SHA-256, or its git hash if `expected` is a git hash, which the hub uses for small files."""
    if len(expected) == 64:
        return sha256_of(file)
    digest = hashlib.sha1(b"blob %d\0" % file.stat().st_size, usedforsecurity=False)
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: digest).hexdigest()


class LocalSource:
    """A local GGUF file, or a local folder in the Hugging Face layout, as the source of a model.

    Files are copied, not linked, so that later changes to the user's files do not affect the pulled model.
    """

    def __init__(self, path: Path, name: str = "") -> None:
        self._path = path.resolve()
        self._is_file = path.is_file()
        self.name = name or name_from(path.stem if self._is_file else self._path.name)

    def plan(self) -> PullPlan:
        """Return a pull plan with the size of all accepted files. Raises ModelError if the model is not complete."""
        size = sum(file.stat().st_size for file in self._files())
        return PullPlan(str(self._path), "", size)  # the converter checks its own disk space

    def fetch(self, folder: Path, say: Say) -> Fetched:
        """Copy the accepted files, replacing those of an earlier pull."""
        files = self._files()
        for file in files:
            drop(folder / file.name)
            shutil.copyfile(file.resolve(), folder / file.name)
        say(f"{self.name}: copied from {self._path}")
        digests = {file.name: sha256_of(folder / file.name) for file in files}
        return Fetched(self._path.name if self._is_file else "", digests)

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of each accepted file, keyed by file name."""
        return {file.name: sha256_of(file) for file in self._files()}

    def _files(self) -> list[Path]:
        try:
            if self._is_file:
                with self._path.open("rb") as stream:
                    if stream.read(len(_MAGIC)) == _MAGIC:
                        return [self._path]
                fix = "give a GGUF file, or a folder in the Hugging Face layout"
                raise ModelError(f"{self._path} is not a GGUF file", fix)
            files = sorted(path for path in self._path.iterdir() if path.is_file())
        except OSError as error:
            raise ModelError(f"{self._path} can't be read ({error.strerror})", "check the path") from error
        check_complete([file.name for file in files], str(self._path))
        return [file for file in files if is_wanted(file.name)]


def name_from(stem: str) -> str:
    """Derive a model's name from a file name. Raises ConfigError if the file name has no valid characters."""
    name = re.sub(r"-{2,}", "-", re.sub(r"[^a-z0-9._-]+|\.{2,}", "-", stem.lower())).strip("-._")
    if not name:
        raise ConfigError(f"{stem!r} contains no characters valid in a model name", "choose a name with --name")
    return name
