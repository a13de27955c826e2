"""Download a model from the Hugging Face hub with its own client: resumable, each file checked by its hash.

The client restarts an interrupted file in the next process, so partial files are kept here under their expected
hash and resumed.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from codespec.errors import ModelError, first_line
from codespec.store.catalogue import ModelFile
from codespec.store.disk import Say, drop, is_own_file
from codespec.store.source import (
    Fetched,
    PullPlan,
    check_complete,
    check_file,
    is_wanted,
    is_whole,
    partial_of,
    sha256_of,
)

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository: its size, and its SHA-256 or, if small, its git hash."""

    name: str
    size: int
    hash: str


@dataclass
class HubSource:
    """A repository of the hub, or one file of it; `room` is the file's size after conversion."""

    repository: str
    name: str = ""
    licence: str = ""
    revision: str = ""
    file: ModelFile | None = None
    room: int = 0

    def __post_init__(self) -> None:
        self.name = self.name or self.repository

    def plan(self) -> PullPlan:
        """Return the plan with the size of the wanted files. Raises ModelError if the hub is unreachable."""
        licence = self.licence or _licence(self._info)
        size = sum(file.size for file in self._files)
        return PullPlan(f"{self.repository}@{self._info.sha}", licence, size, self.room)

    def fetch(self, folder: Path, say: Say) -> Fetched:
        """Download the missing files into the folder and check every file."""
        for file in self._files:
            _fetch_file(self.repository, self._info.sha, file, folder)
        if self.file:
            say(f"{self.name}: {self.file.name} has the hash that the catalogue pins")
            return Fetched(self.file.name, {self.file.name: self.file.sha256})
        say(f"{self.name}: all files have the hashes that the hub states")
        return Fetched("", {file.name: sha256_of(folder / file.name) for file in self._files})

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
                raise ModelError(f"{self.repository} no longer has {self.file.name}", "update codespec, which pins it")
            return [HubFile(self.file.name, size, self.file.sha256)]
        check_complete([sibling.rfilename for sibling in siblings], self.repository)
        return [_hub_file(sibling, self.repository) for sibling in siblings if is_wanted(sibling.rfilename)]


def _client() -> Any:
    """Return the hub's client, with its telemetry and logging disabled."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub.file_download  # also imports `errors` and `utils`

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    return huggingface_hub


def _licence(info: Any) -> str:
    card = info.card_data or {}
    name = card.get("license_name") if card.get("license") == "other" else card.get("license")
    return str(name or "")


def _hub_file(sibling: Any, repository: str) -> HubFile:
    expected = (sibling.lfs.sha256 if sibling.lfs else sibling.blob_id) or ""
    if not isinstance(sibling.size, int) or not _HASH.fullmatch(expected):
        raise ModelError(
            f"The hub states no size and hash for {sibling.rfilename} of {repository}, so it can't be checked",
            "download it yourself and run `codespec models pull FOLDER`",
        )
    return HubFile(sibling.rfilename, sibling.size, expected)


def _fetch_file(repository: str, commit: str, file: HubFile, folder: Path) -> None:
    """Download and check one file, unless an earlier attempt did."""
    place = folder / file.name
    if is_whole(place, file.hash):
        return
    partial = partial_of(folder, file.name, file.hash)
    if not is_own_file(partial):
        drop(partial)
    with in_words(repository) as client:
        _download(client, repository, commit, file, partial)
    check_file(partial, file.hash, f"{file.name} of {repository}")
    os.replace(partial, place)


def _download(client: Any, repository: str, commit: str, file: HubFile, partial: Path) -> None:
    """Append the missing bytes. The client requests them by Range and retries after short interruptions."""
    url = client.hf_hub_url(repository, file.name, revision=commit)
    headers = {**client.utils.build_hf_headers(), "Accept-Encoding": "identity"}  # so that byte counts match the file
    with partial.open("ab") as stream:
        if stream.tell() > file.size:
            stream.truncate(stream.seek(0))
        begun = stream.tell()
        client.file_download.http_get(
            url, stream, resume_size=begun, headers=headers, expected_size=file.size, displayed_filename=file.name
        )


@contextmanager
def in_words(repository: str) -> Iterator[Any]:
    """Yield the hub's client and turn its exceptions into ModelErrors with a remedy."""
    client = _client()
    errors = client.errors
    try:
        yield client
    except errors.OfflineModeIsEnabled as error:
        raise ModelError(
            f"{repository} cannot be pulled because HF_HUB_OFFLINE is set", "unset it, or give a file or a folder"
        ) from error
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{repository} is gated", "accept its licence on its page, log in with `hf auth login`, and pull again"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"The hub has no model {repository} that is open to you", "check the name, or log in with `hf auth login`"
        ) from error
    except errors.HfHubHTTPError as error:
        raise _refused(repository, error) from error
    except errors.HTTPError as error:
        raise ModelError(
            f"There is no network here, or the hub does not answer ({first_line(error)})",
            f"pull {repository} again when it does, and what has arrived is kept",
        ) from error
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):  # pull reports the path and the remedy
            raise
        raise ModelError(
            f"{repository} did not arrive whole ({first_line(error)})", "pull again, and what has arrived is kept"
        ) from error


def _refused(repository: str, error: Any) -> ModelError:
    status = error.response.status_code if error.response is not None else 0
    if status in (401, 403):
        return ModelError(
            f"The hub refuses {repository} ({status})", "accept its licence on its page and log in with `hf auth login`"
        )
    if status == 404:
        return ModelError(f"A file of {repository} is gone from the hub (404)", "pull again")
    return ModelError(f"The hub answers {status} for {repository}", "pull again later, and what has arrived is kept")
