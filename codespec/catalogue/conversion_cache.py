"""The cache of converted models: each folder is converted once, by a process of its own, and named by a hash of what it
was converted from.

A broken file can at worst kill the converter, which becomes one sentence here. A folder is complete or absent, because
it is written beside its place and renamed. What a converter does is not known here.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codespec.bounded_json import read_json_file
from codespec.catalogue.disk import Say, drop, locked
from codespec.errors import ModelError
from codespec.progress import StageBar
from codespec.regular_file import Unreadable, open_regular
from codespec.user_folders import cache_folder

FORMAT = 1  # of converted folders: those of another format are converted again
SOURCE = "codespec_source"  # key in a converted folder's config.json: what its weights were converted from
# Keys below it for what a pulled model consists of: the SHA-256 of its GGUF file, or that of each weight file. Removing
# the model removes the folder too.
BASE_FILE, BASE_WEIGHTS = "base_sha256", "base_weights"
SETTLED = 2.0  # seconds after which a file's time shows that nobody has written to it since
START = (sys.executable, "-P", "-m")
STARTUP, SLOWEST = 300.0, 2e6  # seconds a converter may take to start, and bytes a second it reads at least
PATIENCE = 3.0  # seconds after the first share before a bar is shown
NO_SPACE = os.strerror(errno.ENOSPC)  # in a converter's last line
SHARE = re.compile(r"[01]\.\d{4}")
MAX_INDEXED = 200  # files in the index


@dataclass(frozen=True, slots=True)
class Conversion:
    """A conversion: `python -m module *arguments FOLDER DIGEST` writes the folder named `digest`.

    progress  the line for the user when it starts
    waiting   the line when another process is converting the same model
    failed    the start of the error sentence, and `mend` its end
    nbytes    how much is read, which bounds the time
    """

    digest: str
    module: str
    arguments: tuple[str, ...]
    progress: str
    waiting: str
    failed: str
    mend: str
    nbytes: int


def convert_once(conversion: Conversion, say: Say | None = None) -> Path:
    """The converted folder, converted now if it is not in the cache. `say` gets a line before anything slow; by default
    it goes to stderr. Raises ModelError in one sentence.
    """
    say = say or _to_stderr
    folder = converted_home() / conversion.digest
    if _is_complete(folder):
        return folder
    with locked(folder.with_suffix(".lock"), conversion.waiting, say):
        if not _is_complete(folder):
            _convert(conversion, folder, say)
    return folder


def converted_home() -> Path:
    """The folder of all converted models, each in a folder named by its digest."""
    return cache_folder() / "gguf"


def kept_folder(digest: str) -> Path | None:
    """The converted folder of this digest, if it is in the cache."""
    folder = converted_home() / digest
    return folder if _is_complete(folder) else None


def base_of(folder: Path, weights: Sequence[Path]) -> dict[str, Any]:
    """BASE_FILE or BASE_WEIGHTS for a folder that is made from `folder`, whose weight files these are. Of a converted
    folder it is the base of that.
    """
    if folder.parent != converted_home():
        return {BASE_WEIGHTS: {file.name: hash_once(file) for file in weights}}
    source = read_json_file(folder / "config.json")[SOURCE]
    return {key: source[key] for key in (BASE_FILE, BASE_WEIGHTS) if key in source} or {BASE_FILE: source["sha256"]}


def hash_once(file: Path) -> str:
    """A file's SHA-256, from the index if that has this path with this size and time. Raises ModelError for a pipe, a
    device or a folder, and OSError for a file that can't be read.
    """
    place, state = str(file.absolute()), file.stat()
    known, mark = _read_index(), [state.st_size, state.st_mtime_ns]
    if place in known and known[place][:2] == mark:
        return str(known[place][2])
    try:
        with open_regular(file) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except Unreadable as error:
        raise ModelError(f"{file} can't be used ({error}): remove it, or fetch the model again.") from error
    if time.time_ns() - state.st_mtime_ns > SETTLED * 1e9:
        known.pop(place, None)
        _write_index({**dict(list(known.items())[1 - MAX_INDEXED :]), place: [*mark, digest]})
    return digest


def _convert(conversion: Conversion, folder: Path, say: Say) -> None:
    part = folder.with_suffix(".part")
    drop(part)  # left by a process that was killed
    part.mkdir()
    say(conversion.progress)
    try:
        run_converter(conversion, part)
        drop(folder)  # one of another format
        os.rename(part, folder)
    finally:
        drop(part)


def run_converter(conversion: Conversion, folder: Path) -> None:
    """Runs the converter, which writes into `folder`, and shows a bar if it prints its progress as shares from 0 to 1.
    It exits with 2 and one sentence on stderr if it can't convert. Raises ModelError for that, for a crash, and if it
    takes too long.
    """
    seconds = STARTUP + conversion.nbytes / SLOWEST
    command = [*START, conversion.module, *conversion.arguments, str(folder), conversion.digest]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True)
        expired = threading.Event()

        def give_up() -> None:
            expired.set()
            process.kill()

        late = threading.Timer(seconds, give_up)
        late.start()
        try:
            _show_progress(process)
            code = process.wait()
        finally:
            late.cancel()
            process.kill()
            process.wait()
        errors.seek(0)
        last = (errors.read().decode("utf-8", "replace").strip().splitlines() or [""])[-1]
    if NO_SPACE in last:
        raise ModelError(f"{conversion.failed}, because {folder.parent} is full: free some, or set XDG_CACHE_HOME.")
    if code == 2 and last:
        raise ModelError(last)
    if code < 0 and expired.is_set():
        raise ModelError(f"{conversion.failed} (it took longer than {seconds:.0f} s): {conversion.mend}.")
    if code:
        why = f"signal {-code}" if code < 0 else last[:160] or f"exit code {code}"
        raise ModelError(f"{conversion.failed} ({why}): check that memory is free, or {conversion.mend}.")


def _show_progress(process: subprocess.Popen[str]) -> None:
    """Shows a bar of the shares that a converter prints, one a line, once it has printed them for PATIENCE seconds;
    ignores other lines.
    """
    bar, began, share = StageBar("codespec: converting"), 0.0, 0.0
    assert process.stdout is not None
    try:
        with process.stdout as lines:
            for line in lines:
                if share >= 1.0 or not SHARE.fullmatch(line.strip()):
                    continue
                share, began = float(line), began or time.monotonic()
                if time.monotonic() - began >= PATIENCE:
                    bar.update(share, "", ended=share >= 1.0)
    finally:
        bar.close()  # if the converter failed: an error is printed next


def _is_complete(folder: Path) -> bool:
    try:
        source = read_json_file(folder / "config.json")[SOURCE]
        return bool(source["format"] == FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _read_index() -> dict[str, list[Any]]:
    """The index without invalid entries; {} for a corrupt one, which the next write replaces."""
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
    """Writes the index. It only saves time, so where it can't be written files are hashed each time."""
    home, part = converted_home(), ""
    try:
        home.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=home, prefix="index", suffix=".part")  # a new file: no link leads elsewhere
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(values, out, indent=0)
        os.replace(part, home / "index.json")
    except OSError:
        with suppress(OSError):
            Path(part).unlink(missing_ok=True)


def _to_stderr(sentence: str) -> None:
    print(f"codespec: {sentence}", file=sys.stderr, flush=True)
