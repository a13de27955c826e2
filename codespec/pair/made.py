"""Folders that are made once, by a process of their own, and kept in the cache by a hash of what they are made from.

Knows the cache, its lock and its index of hashes, and how a maker is started, so that what a broken file does to it is
one sentence here. Knows nothing of what is made. A folder is whole or not there: it is written beside its place and
renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codespec.bounded_json import read_json_file
from codespec.catalogue.pull import converted_home
from codespec.errors import ModelError

FORMAT = 1  # of what is made: folders of another one are made again
SOURCE = "codespec_source"  # in a made folder's config.json: what its weights were
SETTLED = 2.0  # seconds after which a file's time tells that it has not been written since
START = (sys.executable, "-P", "-m")
PATIENCE, SLOWEST = 300.0, 2e6  # seconds that a maker has for its start, and bytes a second that it reads at least
MOST_KNOWN = 200  # files in the index

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Making:
    """What is to be made: the folder's name is `digest`; `module` is run with `arguments`, the folder and the digest.

    `told` says what takes long, `waiting` that somebody else is at it, `failed` what could not be done. `nbytes` is how
    much is read, and so how long it may take.
    """

    digest: str
    module: str
    arguments: tuple[str, ...]
    told: str
    waiting: str
    failed: str
    nbytes: int


def made(making: Making, say: Say | None = None) -> Path:
    """The folder, made now if it never was; ModelError in one sentence if it can't be. `say` is told what takes long;
    by default it goes to stderr.
    """
    say = say or _say
    folder = converted_home() / making.digest
    if _is_made(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder, making.waiting, say):
        if not _is_made(folder):
            _make(making, folder, say)
    return folder


def hash_once(file: Path) -> str:
    """A file's SHA-256, from the index where it holds this path with this size and time."""
    place, state = str(file.absolute()), file.stat()
    known, mark = _read_index(), [state.st_size, state.st_mtime_ns]
    if place in known and known[place][:2] == mark:
        return str(known[place][2])
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if time.time_ns() - state.st_mtime_ns > SETTLED * 1e9:
        known.pop(place, None)
        _write_index({**dict(list(known.items())[1 - MOST_KNOWN :]), place: [*mark, digest]})
    return digest


def _make(making: Making, folder: Path, say: Say) -> None:
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
    part.mkdir()
    say(making.told)
    try:
        run_maker(making, part)
        shutil.rmtree(folder, ignore_errors=True)  # of another format
        os.rename(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def run_maker(making: Making, folder: Path) -> None:
    """Runs the maker, which writes into `folder`. It ends with 2 and one sentence on stderr where it can't."""
    seconds = PATIENCE + making.nbytes / SLOWEST
    try:
        done = subprocess.run(
            [*START, making.module, *making.arguments, str(folder), making.digest],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            f"{making.failed} (it took longer than {seconds:.0f} s): take the model's folder in the Hugging Face "
            "layout."
        ) from error
    last = (done.stderr.strip().splitlines() or [""])[-1]
    if done.returncode == 2 and last:
        raise ModelError(last)
    if done.returncode:
        why = f"signal {-done.returncode}" if done.returncode < 0 else last[:160] or f"exit code {done.returncode}"
        raise ModelError(
            f"{making.failed} ({why}): check that memory is free, or take the model's folder in the Hugging Face "
            "layout."
        )


def _is_made(folder: Path) -> bool:
    try:
        source = read_json_file(folder / "config.json")[SOURCE]
        return bool(source["format"] == FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextmanager
def _alone(folder: Path, waiting: str, say: Say) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(folder.with_suffix(".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(waiting)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _read_index() -> dict[str, list[Any]]:
    """What the index says, but for what it can't have said; one that is corrupt is replaced by the next one."""
    try:
        values = read_json_file(converted_home() / "index.json")
    except (OSError, ValueError):
        return {}
    if not isinstance(values, dict):
        return {}
    return {place: value for place, value in values.items() if isinstance(value, list) and _fits(value)}


def _fits(value: list[Any]) -> bool:
    return len(value) == 3 and isinstance(value[2], str) and len(value[2]) == 64 and value[2].isalnum()


def _write_index(values: dict[str, list[Any]]) -> None:
    """It only saves time: where there is no room for it, files are hashed each time."""
    home = converted_home()
    part = home / f"index.{os.getpid()}.part"
    try:
        home.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(values, indent=0), encoding="utf-8")
        os.replace(part, home / "index.json")
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _say(sentence: str) -> None:
    print(f"codespec: {sentence}", file=sys.stderr, flush=True)
