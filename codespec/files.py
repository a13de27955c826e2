"""Untrusted files (regular ones only, with limits), UTF-8 text, JSON with limits, locks, and results kept in files.

JSON's limits are checked before parsing. A recursive parser fails at a depth that depends on the interpreter and the
call stack, and code that walks the values afterwards fails at a smaller depth.
"""

from __future__ import annotations

import codecs
import errno
import hashlib
import json
import os
import shutil
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

# Opening must neither block on a pipe nor acquire a controlling terminal. Windows has neither flag.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
_MARKS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16"}
_MARKS |= {codecs.BOM_UTF16_BE: "UTF-16"}  # after UTF-32, because its mark begins with UTF-16's


MAX_NAMED = 256 << 20  # bytes of a file that a user names


class Unreadable(OSError):
    """Raised if the path is not a regular file, or the file exceeds the size limit."""


def open_regular(file: Path) -> BufferedReader:
    """Open a regular file. Raises OSError and Unreadable, like `read_regular`."""
    if not stat.S_ISREG(file.stat().st_mode):  # opening a device can have side effects
        raise Unreadable("not a regular file")
    opened = open(os.open(file, _FLAGS), "rb")  # noqa: SIM115 - the caller closes it
    if stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        return opened
    opened.close()  # it was replaced after the check
    raise Unreadable("not a regular file")


def copy_regular(file: Path, place: Path) -> None:
    """Copy the contents of a regular file, following links. Raises OSError (including Unreadable)."""
    with open_regular(file) as source, place.open("wb") as copy:
        shutil.copyfileobj(source, copy)


def read_regular(file: Path, most: int) -> bytes:
    """Return the contents of a regular file of at most `most` bytes, following links.

    Raises OSError (including Unreadable), and ValueError for an invalid path.
    """
    with open_regular(file) as opened:
        data = opened.read(most + 1)  # st_size is unreliable: it is 0 in /proc, and files can grow
    if len(data) > most:
        raise Unreadable(f"it is longer than {most >> 10} KiB")
    return data


def read_named(file: Path) -> bytes:
    """Return the contents of a regular file that a user named: a pipe or device would block, or fill the memory.

    Raises OSError (including IsADirectoryError and Unreadable).
    """
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    return read_regular(file, MAX_NAMED)


class NotUtf8(ValueError):
    """Raised if bytes are not UTF-8. The message gives the encoding or the first invalid byte."""


def read_text(file: Path) -> str:
    """Return the text of a file, with \\n as its line ending. Raises OSError and NotUtf8."""
    return decode_text(read_named(file)).replace("\r\n", "\n").replace("\r", "\n")


def decode_text(data: bytes) -> str:
    """Decode UTF-8 without its byte-order mark; keep line endings. Raises NotUtf8."""
    try:
        return without_mark(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotUtf8(f"byte {error.start}") from error


def without_mark(data: bytes) -> bytes:
    """Remove the UTF-8 byte-order mark. Raises NotUtf8 for the mark of another encoding."""
    name = next((_MARKS[mark] for mark in _MARKS if data.startswith(mark)), "")
    if name:
        raise NotUtf8(f"it is {name}")
    return data.removeprefix(codecs.BOM_UTF8)


MAX_JSON_DEPTH = 64  # nested brackets; messages, models and state files need less than a quarter of it
MAX_JSON_VALUES = 1 << 23  # per file; a vocabulary of 500,000 tokens with its merges has three million
MAX_JSON_BYTES = 128 << 20  # per file; the largest vocabularies take 40 MiB
SCAN_BYTES = 1 << 20  # bytes scanned at a time
_SEPARATORS = (b",", b"[", b"{")
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKET = bytes(byte for byte in range(256) if byte not in _STEPS)


class TooLarge(ValueError):
    """Raised if JSON exceeds the limit on nesting depth or number of values."""


def parse_json(data: bytes | bytearray, max_values: int = MAX_JSON_VALUES, *, finite: bool = False) -> Any:
    """Parse UTF-8 JSON. With `finite`, reject NaN and Infinity.

    Raises TooLarge if a limit is exceeded and ValueError if the data is not valid JSON.
    """
    _demand_bounds(data, max_values)
    refuse: Callable[[str], Any] | None = _refuse_constant if finite else None
    return json.loads(data.decode("utf-8"), parse_constant=refuse)


def read_json_file(file: Path, *, finite: bool = False) -> Any:
    """Parse a regular file with `parse_json`. Also raises OSError."""
    return parse_json(read_regular(file, MAX_JSON_BYTES), finite=finite)


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in a model's file, {} if there is none. Raises TokenizerError for an unreadable file."""
    if not file.exists():
        return {}
    try:
        value = read_json_file(file)
    except (TooLarge, Unreadable) as error:
        raise TokenizerError(f"{file} can't be read ({error})", "fetch the model again") from error
    except (OSError, ValueError) as error:
        fix = "fetch the model again, or save the file as UTF-8 without a byte-order mark"
        raise TokenizerError(f"{file} cannot be read as JSON", fix) from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{file} holds no JSON object", "fetch the model again")
    return value


def _demand_bounds(data: bytes | bytearray, max_values: int) -> None:
    """Raise TooLarge if the data nests too deeply or holds too many values.

    Every value except the outermost follows a comma or an opening bracket, so these are counted. Strings (source text)
    contain many of both. If the raw count is too high, the count is repeated without strings.
    """
    opened = data.count(b"[") + data.count(b"{")
    if opened <= MAX_JSON_DEPTH and opened + data.count(b",") <= max_values:
        return
    values = depth = 0
    for outside in _outside_quotes(data):
        values += sum(outside.count(mark) for mark in _SEPARATORS)
        if values > max_values:
            raise TooLarge(f"it holds more than {max_values} commas and brackets")
        steps = map(_STEPS.__getitem__, outside.translate(None, _NO_BRACKET))
        for reached in accumulate(steps, initial=depth):
            if reached > MAX_JSON_DEPTH:
                raise TooLarge(f"it nests more than {MAX_JSON_DEPTH} brackets deep")
        depth = reached


def _outside_quotes(data: bytes | bytearray) -> Iterator[bytes]:
    """Yield the bytes outside strings, one block at a time.

    Splitting the whole file at once would take many times its size in memory.
    """
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # every remaining quote delimits a string
    inside = 0
    for start in range(0, len(data), SCAN_BYTES):
        pieces = data[start : start + SCAN_BYTES].split(b'"')
        yield b" ".join(pieces[inside::2])
        inside = (inside + len(pieces) - 1) % 2


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


FORMAT = 1
CORRUPT = ".corrupt"  # suffix of a renamed corrupt file
_UNFIT = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # conversion errors
Result = TypeVar("Result")


class Unkept(str):
    """A note that data can't be saved to disk. The user must free space or fix a folder's permissions."""


@dataclass(frozen=True, slots=True)
class Kept(Generic[Result]):
    """A file with one result. Errors of the file are noted, never raised.

    `parse` raises ArithmeticError, AttributeError, LookupError, TypeError or ValueError for content that `spell` never
    returns. Notes call the result `what`. `on_corrupt` is the consequence of a corrupt file, `on_unwritable` that of a
    folder that can't be written.
    """

    file: Path
    what: str
    parse: Callable[[Mapping[str, Any]], Result]
    spell: Callable[[Result], Mapping[str, Any]]
    on_corrupt: str = "it is measured again"
    on_unwritable: str = "each start measures it again"

    def get(self, measure: Callable[[], Result], notes: MutableSequence[str]) -> Result:
        """Return the kept result, or measure it now and keep it."""
        kept = self.load(notes)
        if kept is None:
            kept = measure()
            self.save(kept, notes)
        return kept

    def load(self, notes: MutableSequence[str]) -> Result | None:
        """Return the kept result, or None if the file is missing or unusable.

        A file that is corrupt or has another format is renamed: it is noted once, and no data is lost.
        """
        try:
            return self.parse(_content(read_json_file(self.file, finite=True)))
        except FileNotFoundError:
            return None
        except (Unreadable, *_UNFIT) as error:
            reason, aside = " ".join(str(error).split())[:160], self._set_aside()
        except OSError as error:
            reason, aside = str(error.strerror), ""
        notes.append(f"the kept {self.what} can't be read ({reason}): {self.on_corrupt}{aside}")
        return None

    def save(self, result: Result, notes: MutableSequence[str]) -> None:
        """Write the file, or note once why it can't be written."""
        try:
            write(self.file, self.spell(result))
        except OSError as error:
            note = f"the {self.what} can't be kept in {self.file.parent} ({error.strerror}): {self.on_unwritable}"
            if note not in notes:
                notes.append(Unkept(note))

    def _set_aside(self) -> str:
        """Rename the file. Return a clause with the new name, or "" if the rename failed."""
        aside = self.file.with_name(self.file.name + CORRUPT)
        try:
            os.replace(self.file, aside)
        except OSError:
            return ""
        return f", and the file is set aside as {aside}"


def digest(facts: object) -> str:
    """Return 24 hexadecimal digits that identify `repr(facts)`, as the name of a file for one set of facts."""
    return hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()


def _content(values: Any) -> Mapping[str, Any]:
    if not isinstance(values, dict) or values.get("format") != FORMAT or not isinstance(values.get("content"), dict):
        raise ValueError("its format is unknown, or belongs to another version")
    content: Mapping[str, Any] = values["content"]
    return content


def write(file: Path, content: Mapping[str, Any]) -> None:
    """Replace the file atomically: readers see either the old or the new content. Raises OSError."""
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
    """Hold a lock file. Yield whether this process got the lock within `seconds` (negative: wait without a limit).

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
