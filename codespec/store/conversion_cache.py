"""Cache of converted models: each folder is converted once, in a separate process, and named by a hash of its source.

A corrupt file can at worst kill the converter, which is reported as a ModelError. A folder is complete or absent:
it is written under a temporary name and renamed. Independent of the converters.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codespec.errors import ModelError, quoted
from codespec.files import Kept, Unreadable, lock_file, open_regular, read_json_file
from codespec.store.disk import StageBar, drop, locked, say
from codespec.user_folders import cache_folder

FORMAT = 1  # version of converted folders: folders of another version are converted again
SOURCE = "codespec_source"  # key in a converted folder's config.json: the source of its weights
# Keys below SOURCE that identify a pulled model: the SHA-256 of its GGUF file, or of each weight file. Removing the
# model removes the folder too.
BASE_FILE, BASE_WEIGHTS = "base_sha256", "base_weights"
SETTLED = 2.0  # seconds after which an unchanged mtime proves that the file was not written again
START = (sys.executable, "-P", "-m")
STARTUP, SLOWEST = 300.0, 2e6  # seconds a converter may take to start, and its minimum bytes per second
PATIENCE = 3.0  # seconds from the first progress line to the progress bar
NO_SPACE = os.strerror(errno.ENOSPC)  # appears in a converter's last line
SHARE = re.compile(r"[01]\.\d{4}")
MAX_INDEXED = 200  # number of files


@dataclass(frozen=True, slots=True)
class Conversion:
    """A conversion: `python -m module *arguments FOLDER DIGEST` writes the folder named `digest`.

    progress  message for the user at the start
    waiting   message if another process is converting the same model
    failed    start of the error message; `fix` is its end
    nbytes    bytes to read, which bounds the time
    """

    digest: str
    module: str
    arguments: tuple[str, ...]
    progress: str
    waiting: str
    failed: str
    fix: str
    nbytes: int


def convert_once(conversion: Conversion) -> Path:
    """Return the converted folder, converting it now if it is not in the cache, after a line on stderr.

    Raises ModelError.
    """
    folder = converted_home() / conversion.digest
    if _is_complete(folder):
        return folder
    with locked(folder.with_suffix(".lock"), conversion.waiting, say):
        if not _is_complete(folder):
            _convert(conversion, folder)
    return folder


def converted_home() -> Path:
    """Return the folder of all converted models, each in a folder named by its digest."""
    return cache_folder() / "gguf"


def kept_folder(digest: str) -> Path | None:
    """Return the converted folder of this digest, or None if it is not in the cache."""
    folder = converted_home() / digest
    return folder if _is_complete(folder) else None


def base_of(folder: Path, weights: Sequence[Path]) -> dict[str, Any]:
    """Return BASE_FILE or BASE_WEIGHTS for a folder made from `folder` and its weight files.

    If `folder` is itself a converted folder, returns the base recorded there.
    """
    if folder.parent != converted_home():
        return {BASE_WEIGHTS: {file.name: hash_once(file) for file in weights}}
    source = read_json_file(folder / "config.json")[SOURCE]
    return {key: source[key] for key in (BASE_FILE, BASE_WEIGHTS) if key in source} or {BASE_FILE: source["sha256"]}


def made_from(sha256: Mapping[str, str], model: str) -> list[Path]:
    """Return the folders that were converted or merged from a model.

    `sha256` holds the hash of each of its files; `model` is its GGUF file, or "" for a folder.
    """
    digest = sha256.get(model, "")
    files = sorted(converted_home().glob("*/config.json"))
    folders = [file.parent for file in files if _has_base(file, sha256, digest)]
    return [converted_home() / digest, *folders] if re.fullmatch("[0-9a-f]{64}", digest) else folders


def _has_base(config: Path, sha256: Mapping[str, str], digest: str) -> bool:
    """Return whether a config.json names this GGUF file, or some of these weight files, as its source."""
    try:
        source = read_json_file(config)[SOURCE]
        weights = source.get(BASE_WEIGHTS, {}).items()
        return (digest != "" and source.get(BASE_FILE) == digest) or (len(weights) > 0 and weights <= sha256.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def remove_converted(folder: Path) -> None:
    """Delete a converted folder under its lock, after renaming it, because no process may read half of it."""
    part = folder.with_suffix(".part")
    with lock_file(folder.with_suffix(".lock")):
        drop(part)
        if folder.is_dir():
            os.rename(folder, part)
            drop(part)


def hash_once(file: Path) -> str:
    """Return a file's SHA-256, from the index if path, size and mtime match.

    Raises ModelError for a pipe, a device or a folder, and OSError for an unreadable file.
    """
    place, state = str(file.absolute()), file.stat()
    index, mark = _index(), [state.st_size, state.st_mtime_ns]
    known = index.load([]) or {}
    if place in known and known[place][:2] == mark:
        return str(known[place][2])
    try:
        with open_regular(file) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except Unreadable as error:
        raise ModelError(f"{file} can't be used ({error})", "remove it, or fetch the model again") from error
    if time.time_ns() - state.st_mtime_ns > SETTLED * 1e9:
        known.pop(place, None)
        index.save({**dict(list(known.items())[1 - MAX_INDEXED :]), place: [*mark, digest]}, [])
    return digest


def _convert(conversion: Conversion, folder: Path) -> None:
    part = folder.with_suffix(".part")
    drop(part)  # left by a process that was killed
    part.mkdir()
    if conversion.progress:
        say(conversion.progress)
    try:
        run_converter(conversion, part)
        drop(folder)  # a folder of another format version
        os.rename(part, folder)
    finally:
        drop(part)


def run_converter(conversion: Conversion, folder: Path) -> None:
    """Run the converter, which writes into `folder`, with a progress bar if it prints shares from 0 to 1.

    The converter exits with 2 and one sentence on stderr if it cannot convert. Raises ModelError for that, for a crash
    and for a timeout.
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
        raise ModelError(
            f"{conversion.failed}, because the disk of {folder.parent} is full",
            "free some space, or set XDG_CACHE_HOME",
        )
    if code == 2 and last:
        raise ModelError(quoted(last))
    if code < 0 and expired.is_set():
        raise ModelError(f"{conversion.failed} (it took longer than {seconds:.0f} s)", conversion.fix)
    if code:
        why = f"signal {-code}" if code < 0 else last[:160] or f"exit code {code}"
        raise ModelError(f"{conversion.failed} ({why})", f"check that memory is free, or {conversion.fix}")


def _show_progress(process: subprocess.Popen[str]) -> None:
    """Show a bar of the shares that a converter prints, one per line, after PATIENCE seconds.

    Ignores other lines.
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
        bar.close()  # if the converter failed, an error message follows


def _is_complete(folder: Path) -> bool:
    try:
        source = read_json_file(folder / "config.json")[SOURCE]
        return bool(source["format"] == FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _index() -> Kept[dict[str, list[Any]]]:
    """Return the index of hashes: size, mtime and SHA-256 by path. Without it, files are only hashed each time."""
    return Kept(converted_home() / "index.json", "index of hashes", _parse_index, dict)


def _parse_index(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the valid entries."""
    return {place: value for place, value in values.items() if isinstance(value, list) and _fits(value)}


def _fits(value: list[Any]) -> bool:
    return len(value) == 3 and isinstance(value[2], str) and len(value[2]) == 64 and value[2].isalnum()
