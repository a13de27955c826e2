"""The keys of the people and programs that share a daemon, and their usage: a file with one JSON object a line.

    {"name": "ana", "sha256": "…", "created": "2026-11-26"}

The file holds the SHA-256 of each key, never the key. A slow hash, as for passwords, would add nothing: a key is 256
random bits, so a reader of the file can't find it by guessing. Keys are looked up by their hash, so the time of a
comparison reveals nothing about a key either. Counts of usage start at zero with the daemon.
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
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
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
MAX_KEYS = 1000  # each is a label of the metrics
OWNER = "owner"  # the account of the daemon's token
WATCH_SECONDS = 1.0
RESERVED = (OWNER, "metrics")  # names of the daemon's own tokens in metrics
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Key:
    name: str
    sha256: str
    created: str = ""


REMOVED = ("requests_per_minute", "tokens_per_day", "at_once")  # fields of earlier versions; they have no effect
_FIELDS = {item.name for item in fields(Key)}


def read_keys(file: Path, notes: MutableSequence[str] | None = None) -> tuple[Key, ...]:
    """Return the keys of a file. Raises ConfigError, with the line, for anything that `add_key` never writes.

    `notes` gets a sentence for each limit of earlier versions.
    """
    try:
        with open_regular(file) as opened:
            status = os.fstat(opened.fileno())
            data = opened.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = str(error) if isinstance(error, Unreadable) else getattr(error, "strerror", "") or type(error).__name__
        raise ConfigError(f"The keys file {file} can't be read ({why})", "make one with `codespec keys add`") from error
    if sys.platform != "win32" and (status.st_mode & _OTHERS_WRITE or status.st_uid not in (0, os.geteuid())):
        raise ConfigError(f"Other users can write to the keys file {file}", f"run `chmod 600 {file}` as its owner")
    if len(data) > MAX_BYTES:
        raise ConfigError(f"The keys file {file} is longer than {MAX_BYTES >> 10} KiB", "revoke old keys")
    lines = data.removeprefix(codecs.BOM_UTF8).split(b"\n")
    found = [(f"Line {number} of {file}", line) for number, line in enumerate(lines, 1) if line.strip()]
    rows = [(where, _parse(line, where)) for where, line in found]
    limits = dict.fromkeys(name for _, row in rows for name in REMOVED if row.pop(name, None))
    if notes is not None:
        notes += [f"{name} in {file} has no effect any more: limit requests in a proxy" for name in limits]
    keys = tuple(_checked(row, where) for where, row in rows)
    _check(keys, file)
    return keys


def new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def add_key(file: Path, name: str) -> str:
    """Make a key, write its hash to the file, which is created if it is missing, and return the key.

    Raises ConfigError if the name is taken or the file can't be used.
    """
    key = new_key()
    fresh = _checked(
        {"name": name, "sha256": hash_of_key(key), "created": datetime.now(UTC).date().isoformat()}, f"The key {name!r}"
    )
    with _locked(file):
        keys = (*(read_keys(file) if os.path.lexists(file) else ()), fresh)
        _check(keys, file)
        _write(file, keys)
    return key


def revoke_key(file: Path, name: str) -> None:
    """Remove a key from the file. Raises ConfigError if there is no such key."""
    with _locked(file):
        keys = read_keys(file)
        left = [key for key in keys if key.name != name]
        if len(left) == len(keys):
            raise ConfigError(f"{file} has no key named {name!r}", "`codespec keys list` shows the names")
        _write(file, left)


def _parse(line: bytes, where: str) -> dict[str, Any]:
    fix = "remove it, or restore the line that was there"
    try:
        values = parse_json(line, 64, finite=True)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON", fix) from error
    if not isinstance(values, dict):
        raise ConfigError(f"{where} is not a JSON object", fix)
    return values


def _checked(values: dict[str, Any], where: str) -> Key:
    """Return the key with these fields. Raises ConfigError for the first invalid one."""
    unknown = [name for name in values if name not in _FIELDS]
    if unknown:
        known = ", ".join(sorted(_FIELDS))
        raise ConfigError(f"{where} has an unknown field {unknown[0][:40]!r}", f"the fields are {known}")
    for name, pattern in (("name", _NAME), ("sha256", _HASH), ("created", _DATE)):
        value = values.get(name, "")
        if not isinstance(value, str) or not (pattern.fullmatch(value) or (name == "created" and not value)):
            raise ConfigError(f"{where} has no valid {name}", _FIXES[name])
    if values["name"] in RESERVED:
        raise ConfigError(f"{where} has the name {values['name']}, which the daemon uses itself", "choose another name")
    return Key(**values)


_FIXES = {
    "name": "use up to 64 letters, digits and . _ @ + -, beginning with a letter or digit",
    "sha256": "use the 64 hexadecimal digits that `codespec keys add` writes",
    "created": "write a date as 2026-11-26",
}


def _check(keys: tuple[Key, ...], file: Path) -> None:
    if len(keys) > MAX_KEYS:
        raise ConfigError(f"The keys file {file} has more than {MAX_KEYS} keys", "revoke old ones")
    for what, fix in (("name", "revoke one, or choose another name"), ("sha256", "remove one of the lines")):
        seen: set[str] = set()
        for key in keys:
            value = getattr(key, what)
            if value in seen:
                raise ConfigError(f"{file} has two keys with the {what} {value}", fix)
            seen.add(value)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold a lock while the file is read and replaced. Raises ConfigError if it can't be got within 10 seconds."""
    if file.is_symlink():
        raise ConfigError(f"{file} is a link", "name the file that it points to")
    with ExitStack() as stack:
        try:
            if not stack.enter_context(lock_file(Path(f"{file}.lock"), 10)):
                raise TimeoutError(errno.ETIMEDOUT, "another process holds its lock")
        except OSError as error:
            raise _unwritable(file, error) from error
        yield


def _write(file: Path, keys: Iterable[Key]) -> None:
    """Replace the file atomically, with mode 0600."""
    text = "".join(json.dumps({k: v for k, v in asdict(key).items() if v}) + "\n" for key in keys)
    try:
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".part")  # mkstemp uses mode 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            os.replace(name, file)
        finally:
            with suppress(FileNotFoundError):
                Path(name).unlink()
    except OSError as error:
        raise _unwritable(file, error) from error


def _unwritable(file: Path, error: OSError) -> ConfigError:
    why = error.strerror or type(error).__name__
    return ConfigError(f"The keys file {file} can't be written ({why})", "make its folder writable, or make room there")


class Account:
    """The usage of one key, or of the owner, since the daemon started."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.open: set[RequestHandle] = set()
        self.requests = 0  # POST requests
        self.refused = 0  # completions that found the queue full
        self.prompt_tokens = 0
        self.tokens = 0

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def num_open(self) -> int:
        return len(self.open)

    def end(self, handle: RequestHandle) -> None:
        """Count a completion that has ended, or has lost its client."""
        self.open.discard(handle)
        self.prompt_tokens += handle.prompt_tokens
        self.tokens += handle.num_tokens


class Keyring:
    """The accounts of the keys in a file. Raises ConfigError if the file can't be used.

    `notes` gets a sentence for each setting that has no effect. If the file changes and can't be used any more, the
    previous keys stay valid and `fault` is set.
    """

    def __init__(self, file: Path, notes: MutableSequence[str] | None = None) -> None:
        self.file = file
        self.owner = Account(Key(OWNER, ""))
        self.fault = ""
        self._version: tuple[int, ...] = self._look()
        self._by_hash: dict[str, Account] = {}
        self._by_id: dict[str, str] = {}
        self._take(read_keys(file, notes))

    @property
    def accounts(self) -> list[Account]:
        return [self.owner, *self._by_hash.values()]

    def find(self, key: str) -> Account | None:
        return self._by_hash.get(hash_of_key(key)) if key else None

    def hash_by_id(self, key_id: str) -> str | None:
        """Return the hash of the key with the id that a client sent for a proof, or None."""
        return self._by_id.get(key_id)

    def refresh(self) -> list[Account]:
        """Read the file again if it has changed; return the accounts of removed keys."""
        version = self._look()
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
        return self._take(keys)

    def _take(self, keys: tuple[Key, ...]) -> list[Account]:
        """Replace the keys. A key that was there before keeps its account, and a new key gets a new one."""
        former, self._by_hash = self._by_hash, {}
        for key in keys:
            account = former.pop(key.sha256, None) or Account(key)
            account.key = key
            self._by_hash[key.sha256] = account
        self._by_id = {key_id(key.sha256): key.sha256 for key in keys}
        return list(former.values())

    def _look(self) -> tuple[int, ...]:
        """Return the file's times, size and inode number, which change with its content."""
        try:
            state = os.stat(self.file)
        except (OSError, ValueError):
            return ()
        return state.st_mtime_ns, state.st_ctime_ns, state.st_size, state.st_ino


async def watch(keyring: Keyring, woken: asyncio.Event, end: Callable[[Account], None]) -> NoReturn:
    """Read the keys file when it changes, and when `woken` is set; `end` each revoked key."""
    while True:
        try:
            async with asyncio.timeout(WATCH_SECONDS):
                await woken.wait()
        except TimeoutError:
            pass
        woken.clear()
        for account in keyring.refresh():
            end(account)
