"""Read untrusted files, UTF-8 text and JSON with size limits, lock files, and cache results in files.

The nesting depth of JSON is checked before parsing, because a recursive parser fails at a depth that depends on the
interpreter and the call stack.
"""

from __future__ import annotations

import codecs
import errno
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, MutableSequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from codespec.errors import TokenizerError

# These flags prevent opening from blocking on a pipe and from acquiring a controlling terminal.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
_MARKS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16"}
_MARKS |= {codecs.BOM_UTF16_BE: "UTF-16"}  # UTF-32 goes first, because its marks begin with those of UTF-16
MAX_NAMED = 256 << 20  # bytes of a file that a user names


class Unreadable(OSError):
    """Raised if a path does not lead to a regular file, or if the file exceeds a size limit."""


def open_regular(file: Path) -> BufferedReader:
    """Open a file for reading. Raises Unreadable if the file is not a regular file, else OSError on failure."""
    if not stat.S_ISREG(file.stat().st_mode):  # opening a device can have side effects
        raise Unreadable("not a regular file")
    opened = open(os.open(file, _FLAGS), "rb")  # noqa: SIM115 - the caller closes it
    if stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        return opened
    opened.close()  # the file was replaced after the check
    raise Unreadable("not a regular file")


def read_regular(file: Path, most: int) -> bytes:
    """Return the contents of a regular file of at most `most` bytes. Raises OSError, and ValueError for a bad path."""
    with open_regular(file) as opened:
        data = opened.read(most + 1)  # st_size is unreliable: it is 0 in /proc, and files can grow
    if len(data) > most:
        raise Unreadable(f"longer than {most >> 10} KiB")
    return data


def read_named(file: Path) -> bytes:
    """Return the contents of a regular file that the user named, at most MAX_NAMED bytes. Raises OSError."""
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    return read_regular(file, MAX_NAMED)


class NotUtf8(ValueError):
    """Raised if bytes are not valid UTF-8. The message names the encoding or the position of the first invalid byte."""


def read_text(file: Path) -> str:
    """Return the text of a UTF-8 file with all line endings converted to LF. Raises OSError and NotUtf8."""
    return decode_text(read_named(file)).replace("\r\n", "\n").replace("\r", "\n")


def decode_text(data: bytes) -> str:
    """Decode UTF-8 without the byte-order mark, and keep the line endings. Raises NotUtf8."""
    try:
        return without_mark(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotUtf8(f"byte {error.start}") from error


def without_mark(data: bytes) -> bytes:
    """Remove a UTF-8 byte-order mark. Raises NotUtf8 if the data begins with the mark of UTF-16 or UTF-32."""
    name = next((_MARKS[mark] for mark in _MARKS if data.startswith(mark)), "")
    if name:
        raise NotUtf8(f"it is {name}")
    return data.removeprefix(codecs.BOM_UTF8)


MAX_JSON_DEPTH = 64  # nested brackets; messages, models and state files nest less than 16 deep
MAX_JSON_VALUES = 1 << 23  # per file; a vocabulary of 500,000 tokens with its merges has three million
MAX_JSON_BYTES = 128 << 20  # per file; the largest vocabularies take 40 MiB
SCAN_BYTES = 1 << 20  # block size of the scan for brackets and commas
_SEPARATORS = (b",", b"[", b"{")
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKET = bytes(byte for byte in range(256) if byte not in _STEPS)


class TooLarge(ValueError):
    """Raised if JSON exceeds the limit on the nesting depth or on the number of values."""


def parse_json(data: bytes | bytearray, max_values: int = MAX_JSON_VALUES, *, finite: bool = False) -> Any:
    """Parse UTF-8 JSON, in which NaN and Infinity are invalid if `finite` is true.

    Raises TooLarge for excessive nesting or too many values, and ValueError if the data is not valid JSON.
    """
    _demand_bounds(data, max_values)
    refuse: Callable[[str], Any] | None = _refuse_constant if finite else None
    return json.loads(data.decode("utf-8"), parse_constant=refuse)


def read_json_file(file: Path, *, finite: bool = False) -> Any:
    """Parse a JSON file of at most MAX_JSON_BYTES. Raises OSError and the errors of `parse_json`."""
    return parse_json(read_regular(file, MAX_JSON_BYTES), finite=finite)


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in a model's file, or {} if the file does not exist. Raises TokenizerError."""
    if not file.exists():
        return {}
    try:
        value = read_json_file(file)
    except (TooLarge, Unreadable) as error:
        raise TokenizerError(f"{file} can't be read ({error})", "download the model again") from error
    except OSError as error:
        raise TokenizerError(f"{file} can't be read ({error.strerror})", "make the file readable") from error
    except ValueError as error:
        raise TokenizerError(
            f"{file} is not valid JSON", "download the model again, or save it as UTF-8 without a byte-order mark"
        ) from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{file} does not contain a JSON object", "download the model again")
    return value


def _demand_bounds(data: bytes | bytearray, max_values: int) -> None:
    """Raise TooLarge if the JSON nests too deeply or contains too many values."""
    # The number of commas and opening brackets limits the number of values. If the number is too high, commas and
    # brackets inside strings are excluded, because strings may contain source code.
    opened = data.count(b"[") + data.count(b"{")
    if opened <= MAX_JSON_DEPTH and opened + data.count(b",") <= max_values:
        return
    values = depth = 0
    for outside in _outside_quotes(data):
        values += sum(outside.count(mark) for mark in _SEPARATORS)
        if values > max_values:
            raise TooLarge(f"more than {max_values} commas and brackets")
        steps = map(_STEPS.__getitem__, outside.translate(None, _NO_BRACKET))
        for reached in accumulate(steps, initial=depth):
            if reached > MAX_JSON_DEPTH:
                raise TooLarge(f"nested more than {MAX_JSON_DEPTH} brackets deep")
        depth = reached


def _outside_quotes(data: bytes | bytearray) -> Iterator[bytes]:
    """Yield the bytes outside JSON strings, block by block. Splitting all data at once would take too much memory."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # every remaining quote delimits a string
    inside = 0
    for start in range(0, len(data), SCAN_BYTES):
        pieces = data[start : start + SCAN_BYTES].split(b'"')
        yield b" ".join(pieces[inside::2])
        inside = (inside + len(pieces) - 1) % 2


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid in JSON")


FORMAT = 1
CORRUPT = ".corrupt"  # suffix of a renamed corrupt file
_UNFIT = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # errors of `Kept.parse`
Result = TypeVar("Result")


class Unkept(str):
    """A note that data can't be saved until the user frees disk space or changes a folder's permissions."""


@dataclass(frozen=True, slots=True)
class Kept(Generic[Result]):
    """A result that is cached in a file. File errors are added to the notes and never raised."""

    file: Path
    what: str  # name of the result in notes
    parse: Callable[[Mapping[str, Any]], Result]  # from JSON; raises one of `_UNFIT` for invalid content
    spell: Callable[[Result], Mapping[str, Any]]  # to JSON
    on_corrupt: str = "it is measured again"  # consequence of a corrupt file, in a note
    on_unwritable: str = "each start measures it again"  # consequence of a folder without write access, in a note

    def get(self, measure: Callable[[], Result], notes: MutableSequence[str]) -> Result:
        """Return the saved result. If no result is saved, call `measure` and save its result."""
        kept = self.load(notes)
        if kept is None:
            kept = measure()
            self.save(kept, notes)
        return kept

    def load(self, notes: MutableSequence[str]) -> Result | None:
        """Return the saved result, or None if there is none. A corrupt file is renamed, so it is reported only once."""
        try:
            values = read_json_file(self.file, finite=True)
            content = values.get("content") if isinstance(values, dict) and values.get("format") == FORMAT else None
            if not isinstance(content, dict):
                raise ValueError("the file's format is unknown or belongs to another version")
            return self.parse(content)
        except FileNotFoundError:
            return None
        except (Unreadable, *_UNFIT) as error:
            reason, aside = " ".join(str(error).split())[:160], self._set_aside()
        except OSError as error:
            reason, aside = str(error.strerror), ""
        notes.append(f"the saved {self.what} can't be read ({reason}): {self.on_corrupt}{aside}")
        return None

    def save(self, result: Result, notes: MutableSequence[str]) -> None:
        """Write the file. If writing fails, add a note unless `notes` already contains the note."""
        try:
            write(self.file, self.spell(result))
        except OSError as error:
            note = f"the {self.what} can't be saved in {self.file.parent} ({error.strerror}): {self.on_unwritable}"
            if note not in notes:
                notes.append(Unkept(note))

    def _set_aside(self) -> str:
        """Rename the file, and return a clause with the new name, or "" if renaming fails."""
        aside = self.file.with_name(self.file.name + CORRUPT)
        try:
            os.replace(self.file, aside)
        except OSError:
            return ""
        return f", and the file is set aside as {aside}"


def digest(facts: object) -> str:
    """Return a hash of `repr(facts)` in 24 hexadecimal digits, for naming a file that depends on these facts."""
    return hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()


def write(file: Path, content: Mapping[str, Any]) -> None:
    """Replace a file atomically, so that readers see either the old or the new content. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.stem, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump({"format": FORMAT, "content": content}, out, separators=(",", ":"))
        os.replace(name, file)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def lock_file(file: Path, seconds: float = -1.0) -> Iterator[bool]:
    """Lock a file within the context. Yield whether the lock was acquired within `seconds` (negative: no time limit).

    Raises OSError if the file can't be created.
    """
    from filelock import FileLock, Timeout

    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(file, mode=0o600)
    with suppress(Timeout):
        lock.acquire(timeout=seconds)
    try:
        yield lock.is_locked
    finally:
        lock.release()
