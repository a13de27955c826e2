"""The API keys of the people and programs that share a daemon, and the usage of each key since the daemon started.

A line of the keys file is a JSON object: {"name": "ana", "sha256": "…", "created": "2026-11-26"}. The file contains the
SHA-256 of each key, never the key itself. A key is 256 random bits, which can't be guessed, so a slow password hash
would add nothing. Keys are looked up by their hash, so response times reveal nothing about them.
"""

from __future__ import annotations

import asyncio
import codecs
import errno
import json
import os
import re
import secrets
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from codespec.client.proof import KEY_PREFIX, hash_of_key, key_id
from codespec.errors import ConfigError
from codespec.files import Unreadable, lock_file, open_regular, parse_json
from codespec.server.logs import log

if TYPE_CHECKING:
    from codespec.engine.job import RequestHandle

MAX_BYTES = 1 << 20  # of the file
MAX_KEYS = 1000  # each key is a label of the metrics
OWNER = "owner"  # the account of the daemon's token
WATCH_SECONDS = 1.0
RESERVED = (OWNER, "metrics")  # names of the daemon's own tokens in metrics
# The pattern of each field, and the fix for a value that does not match it.
_FIELDS = {
    "name": (
        re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}"),
        "use up to 64 letters, digits and . _ @ + -, beginning with a letter or digit",
    ),
    "sha256": (re.compile(r"[0-9a-f]{64}"), "use the 64 hexadecimal digits that `codespec keys add` writes"),
    "created": (re.compile(r"(\d{4}-\d\d-\d\d)?"), "write a date as 2026-11-26"),
}


@dataclass(frozen=True, slots=True)
class Key:
    name: str
    sha256: str
    created: str = ""


def read_keys(file: Path) -> tuple[Key, ...]:
    """Return the keys in a keys file. Raise ConfigError if the file is unsafe or a line is invalid."""
    try:
        with open_regular(file) as opened:
            status = os.fstat(opened.fileno())
            data = opened.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = str(error) if isinstance(error, Unreadable) else getattr(error, "strerror", "") or type(error).__name__
        raise ConfigError(
            f"The keys file {file} can't be read ({why})", "check the path, or create the file with `codespec keys add`"
        ) from error
    shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if sys.platform != "win32" and (shared or status.st_uid not in (0, os.geteuid())):
        raise ConfigError(f"Other users can write to the keys file {file}", f"run `chmod 600 {file}` as its owner")
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"The keys file {file} is longer than {MAX_BYTES >> 10} KiB", "delete the lines with old keys"
        )
    lines = data.removeprefix(codecs.BOM_UTF8).split(b"\n")
    keys = tuple(_parse(line, f"Line {number} of {file}") for number, line in enumerate(lines, 1) if line.strip())
    _check(keys, file)
    return keys


def add_key(file: Path, name: str) -> str:
    """Create a key and add its hash to the file; return the key. Raise ConfigError for a taken or invalid name."""
    key, today = KEY_PREFIX + secrets.token_urlsafe(32), datetime.now(UTC).date()
    fresh = _checked({"name": name, "sha256": hash_of_key(key), "created": today.isoformat()}, f"The key {name!r}")
    with _locked(file):
        keys = (*(read_keys(file) if os.path.lexists(file) else ()), fresh)
        _check(keys, file)
        _write(file, keys)
    return key


def revoke_key(file: Path, name: str) -> None:
    """Remove a key from the file. Raise ConfigError if no key has this name."""
    with _locked(file):
        keys = read_keys(file)
        left = [key for key in keys if key.name != name]
        if len(left) == len(keys):
            raise ConfigError(f"{file} has no key named {name!r}", "run `codespec keys list` to see the names")
        _write(file, left)


def _parse(line: bytes, where: str) -> Key:
    with suppress(ValueError):
        values = parse_json(line, 64, finite=True)
        if isinstance(values, dict):
            return _checked(values, where)
    raise ConfigError(f"{where} is not a JSON object", "delete the line, or restore its earlier content")


def _checked(values: dict[str, Any], where: str) -> Key:
    for name in values:
        if name not in _FIELDS:
            raise ConfigError(f"{where} has an unknown field {name[:40]!r}", f"the fields are {', '.join(_FIELDS)}")
    for name, (pattern, fix) in _FIELDS.items():
        value = values.get(name, "")
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ConfigError(f"{where} has no valid {name}", fix)
    if values["name"] in RESERVED:
        raise ConfigError(f"{where} has the reserved name {values['name']}", "choose another name")
    return Key(**values)


def _check(keys: tuple[Key, ...], file: Path) -> None:
    if len(keys) > MAX_KEYS:
        raise ConfigError(f"The keys file {file} has more than {MAX_KEYS} keys", "delete the lines with old keys")
    for what, fix in (("name", "choose another name for one of them"), ("sha256", "remove one of the lines")):
        value, times = Counter(getattr(key, what) for key in keys).most_common(1)[0] if keys else ("", 0)
        if times > 1:
            raise ConfigError(f"{file} has two keys with the {what} {value}", fix)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold the file's lock. Raise ConfigError after waiting 10 seconds for the lock, or if writing fails."""
    if file.is_symlink():
        raise ConfigError(f"{file} is a symbolic link", "give the path that it points to")
    try:
        with lock_file(Path(f"{file}.lock"), 10) as locked:
            if not locked:
                raise TimeoutError(errno.ETIMEDOUT, "another process holds the file's lock")
            yield
    except OSError as error:
        what = f"The keys file {file} can't be written ({error.strerror or type(error).__name__})"
        raise ConfigError(what, "make its folder writable, or free disk space") from error


def _write(file: Path, keys: Iterable[Key]) -> None:
    text = "".join(json.dumps({k: v for k, v in asdict(key).items() if v}) + "\n" for key in keys)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".part")  # with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, file)
    finally:
        Path(name).unlink(missing_ok=True)


class Account:
    """The usage of one API key, or of the owner's token, since the daemon started."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.open: set[RequestHandle] = set()
        self.requests = 0  # POST requests
        self.refused = 0  # completions that found the queue full
        self.prompt_tokens = 0
        self.tokens = 0

    @property
    def num_open(self) -> int:
        return len(self.open)

    def end(self, handle: RequestHandle) -> None:
        """Add the tokens of a completion that has ended or whose client has disconnected."""
        self.open.discard(handle)
        self.prompt_tokens += handle.prompt_tokens
        self.tokens += handle.num_tokens


class Keyring:
    """The accounts of the API keys in a keys file. Raises ConfigError if the file can't be used."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.owner = Account(OWNER)
        self.fault = ""  # why a later version of the file can't be used, so that the previous keys remain valid
        self._version = self._file_version()
        self._by_hash: dict[str, Account] = {}
        self.hash_by_id: dict[str, str] = {}  # a client sends a key's id to request a proof
        self._replace(read_keys(file))

    @property
    def accounts(self) -> list[Account]:
        return [self.owner, *self._by_hash.values()]

    def find(self, key: str) -> Account | None:
        return self._by_hash.get(hash_of_key(key)) if key else None

    def refresh(self) -> list[Account]:
        """Read the file if it has changed, and return the accounts of removed keys."""
        version = self._file_version()
        if version == self._version:
            return []
        self._version = version
        try:
            keys = read_keys(self.file)
        except ConfigError as error:
            self.fault = f"{error.fault.clause}; the previous keys stay valid."
            log.warning("%s", self.fault)
            return []
        self.fault = ""
        return self._replace(keys)

    def _replace(self, keys: tuple[Key, ...]) -> list[Account]:
        """Replace the keys, retaining the accounts of unchanged keys. Return the accounts of removed keys."""
        former, self._by_hash = self._by_hash, {}
        for key in keys:
            account = self._by_hash[key.sha256] = former.pop(key.sha256, Account(key.name))
            account.name = key.name
        self.hash_by_id = {key_id(key.sha256): key.sha256 for key in keys}
        return list(former.values())

    def _file_version(self) -> tuple[int, ...]:
        """Return the times, the size and the inode number of the keys file, or () if they can't be read."""
        try:
            state = os.stat(self.file)
        except (OSError, ValueError):
            return ()
        return state.st_mtime_ns, state.st_ctime_ns, state.st_size, state.st_ino


async def watch(keyring: Keyring, woken: asyncio.Event, end: Callable[[Account], None]) -> NoReturn:
    """Check the keys file for changes every second and when `woken` is set. Call `end` for a removed key's account."""
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(WATCH_SECONDS):
                await woken.wait()
        woken.clear()
        for account in keyring.refresh():
            end(account)
