"""Find the text that a pair is measured on: named files, or source files in a folder, bounded and in a fixed order."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from codespec.errors import ConfigError
from codespec.files import NotUtf8, decode_text
from codespec.text.align import complete_utf8_length

MAX_FILES, MAX_BYTES, MAX_OF_ONE = 40, 400_000, 32_000
MIN_BYTES = 4_000  # minimum for a meaningful measurement
_MAX_FOLDERS, _MAX_FOUND = 2_000, 4_000
_LANGUAGES = "py pyi js mjs cjs jsx ts tsx go rs c h cc cpp hpp java kt swift cs rb php lua sh"
_SUFFIXES = frozenset(f".{name}" for name in _LANGUAGES.split())
_SKIPPED = frozenset({"node_modules", "venv", "env", "__pycache__", "site-packages", "build", "dist"})


@dataclass(frozen=True, slots=True)
class Sample:
    """Texts by file name, and their source."""

    source: str
    texts: tuple[tuple[str, str], ...]

    @property
    def size(self) -> int:
        """Size of the text in bytes."""
        return sum(len(text.encode("utf-8")) for _, text in self.texts)


def find_sample(named: Iterable[Path] | None = None) -> Sample:
    """Return the named files, else the source files here, else some of the standard library's. Raises ConfigError."""
    if named:
        return named_sample(named)
    own = own_sample(Path.cwd())
    return own if own.size >= MIN_BYTES else own_sample(Path(sysconfig.get_path("stdlib")), "standard library")


def named_sample(files: Iterable[Path]) -> Sample:
    """Return the files named by the user, up to MAX_BYTES in total.

    Raises ConfigError for a file that is not readable UTF-8 text.
    """
    texts, room = [], MAX_BYTES
    for file in files:
        try:
            text = _read(file, room)
        except OSError as error:
            raise ConfigError(f"{file} can't be read ({error.strerror})", "check the path") from error
        except NotUtf8 as error:
            raise ConfigError(f"{file} is not UTF-8 text ({error})", "name other files") from error
        texts.append((str(file), text))
        room -= len(text.encode("utf-8"))
        if room <= 0:
            break
    return Sample("named files", tuple(texts))


def own_sample(root: Path, source: str = "files here") -> Sample:
    """Return at most MAX_FILES source files in a folder, evenly spaced in the sorted list."""
    files, texts = source_files(root), []
    count = min(len(files), MAX_FILES)
    for file in (files[place * len(files) // count] for place in range(count)):
        with suppress(OSError, NotUtf8):  # the sample can do without it
            if text := _read(file, min(MAX_OF_ONE, MAX_BYTES // count)) if file.is_file() else "":
                texts.append((str(file.relative_to(root)), text))
    return Sample(source, tuple(texts))


def source_files(root: Path) -> list[Path]:
    """Return source files in a fixed order, excluding hidden, installed and generated ones.

    The walk of a huge tree stops early.
    """
    found: list[Path] = []
    for count, (folder, below, names) in enumerate(os.walk(root)):
        if count >= _MAX_FOLDERS or len(found) >= _MAX_FOUND:
            break
        if "pyvenv.cfg" in names and Path(folder) != root:
            below.clear()
            continue
        below[:] = sorted(name for name in below if name not in _SKIPPED and not name.startswith("."))
        found += [Path(folder, n) for n in sorted(names) if Path(n).suffix in _SUFFIXES and not n.startswith(".")]
    return found


def _read(file: Path, most: int) -> str:
    """Read at most `most` bytes of a UTF-8 text, cut at the end of a line."""
    with file.open("rb") as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        data = data[:most]
        data = data[: data.rfind(b"\n") + 1 or complete_utf8_length(data)]
    text = decode_text(data)
    if "\0" in text:
        raise NotUtf8(f"byte {data.index(0)}")
    return text
