"""Copy a user's own model into the store: a GGUF file, or a folder in the Hugging Face layout.

Files are copied, never linked: a later write to the user's file must not change a model whose checksum is recorded.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from codespec.catalogue.disk import Say, drop
from codespec.catalogue.source import Fetched, Plan, check_complete, is_wanted, sha256_of
from codespec.errors import ConfigError, ModelError

_MAGIC = b"GGUF"


class FileSource:
    """Source that copies one `.gguf` file."""

    def __init__(self, file: Path, name: str = "") -> None:
        self._file = file.resolve()
        self.name = name or name_from(file.stem)

    def plan(self) -> Plan:
        """Return the plan with the file's size. Raises ModelError if it is not a GGUF file."""
        try:
            with self._file.open("rb") as stream:
                magic = stream.read(len(_MAGIC))
        except OSError as error:
            raise ModelError(f"{self._file} can't be read ({error.strerror}): check its path.") from error
        if magic != _MAGIC:
            raise ModelError(f"{self._file} is not a GGUF file: give one, or a folder in the Hugging Face layout.")
        return Plan(str(self._file), "", self._file.stat().st_size)  # the converter checks its own disk space

    def digests(self) -> dict[str, str]:
        """Return the current SHA-256 of the file."""
        return {self._file.name: sha256_of(self._file)}

    def fetch(self, folder: Path, say: Say) -> Fetched:
        """Copy the file."""
        take(self._file, folder / self._file.name)
        say(f"{self.name}: taken in from {self._file}")
        return Fetched(self._file.name, {self._file.name: sha256_of(folder / self._file.name)})


class FolderSource:
    """Source that copies a folder in the Hugging Face layout."""

    def __init__(self, folder: Path, name: str = "") -> None:
        self._folder = folder.resolve()
        self.name = name or name_from(self._folder.name)

    def plan(self) -> Plan:
        """Return the plan with the size of the wanted files. Raises ModelError if it is not a complete model."""
        files = self._files()
        return Plan(str(self._folder), "", sum(file.stat().st_size for file in files))

    def fetch(self, folder: Path, say: Say) -> Fetched:
        """Copy the wanted files."""
        files = self._files()
        for file in files:
            take(file.resolve(), folder / file.name)
        say(f"{self.name}: taken in from {self._folder}")
        return Fetched("", {file.name: sha256_of(folder / file.name) for file in files})

    def digests(self) -> dict[str, str]:
        """Return the current SHA-256 of each wanted file."""
        return {file.name: sha256_of(file) for file in self._files()}

    def _files(self) -> list[Path]:
        try:
            files = sorted(path for path in self._folder.iterdir() if path.is_file())
        except OSError as error:
            raise ModelError(f"{self._folder} can't be read ({error.strerror}): check its path.") from error
        check_complete([file.name for file in files], str(self._folder))
        return [file for file in files if is_wanted(file.name)]


def take(file: Path, place: Path) -> None:
    """Copy a file, replacing leftovers of an earlier attempt."""
    drop(place)
    shutil.copyfile(file, place)


def name_from(stem: str) -> str:
    """Return a model name derived from a file name. Raises ConfigError if no characters remain."""
    name = re.sub(r"-{2,}", "-", re.sub(r"[^a-z0-9._-]+|\.{2,}", "-", stem.lower())).strip("-._")
    if not name:
        raise ConfigError(f"{stem!r} gives no name for a model: choose one with --name.")
    return name
