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
        card = self._info.card_data or {}
        stated = card.get("license_name") if card.get("license") == "other" else card.get("license")
        size = sum(file.size for file in self._files)
        return PullPlan(f"{self.repository}@{self._info.sha}", self.licence or str(stated or ""), size, self.room)

    def fetch(self, folder: Path, say: Say) -> Fetched:
        """Download the missing files into the folder and check every file."""
        for file in self._files:
            if not is_whole(folder / file.name, file.hash):
                self._download(file, folder)
        if self.file:
            say(f"{self.name}: {self.file.name} has the hash that the catalogue pins")
            return Fetched(self.file.name, {self.file.name: self.file.sha256})
        say(f"{self.name}: all files have the hashes that the hub states")
        return Fetched("", {file.name: sha256_of(folder / file.name) for file in self._files})

    def _download(self, file: HubFile, folder: Path) -> None:
        """Append the missing bytes, and check the file. The client requests them by Range and retries."""
        partial = partial_of(folder, file.name, file.hash)
        if not is_own_file(partial):
            drop(partial)
        with in_words(self.repository) as client, partial.open("ab") as stream:
            url = client.hf_hub_url(self.repository, file.name, revision=self._info.sha)
            headers = client.utils.build_hf_headers() | {"Accept-Encoding": "identity"}  # so that byte counts match
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
                raise ModelError(f"{self.repository} no longer has {self.file.name}", "update codespec, which pins it")
            return [HubFile(self.file.name, size, self.file.sha256)]
        check_complete([sibling.rfilename for sibling in siblings], self.repository)
        return [_hub_file(sibling, self.repository) for sibling in siblings if is_wanted(sibling.rfilename)]


def _hub_file(sibling: Any, repository: str) -> HubFile:
    expected = (sibling.lfs.sha256 if sibling.lfs else sibling.blob_id) or ""
    if not isinstance(sibling.size, int) or not _HASH.fullmatch(expected):
        what = f"The hub states no size and hash for {sibling.rfilename} of {repository}, so it can't be checked"
        raise ModelError(what, "download it yourself and run `codespec models pull FOLDER`")
    return HubFile(sibling.rfilename, sibling.size, expected)


@contextmanager
def in_words(repository: str) -> Iterator[Any]:
    """Yield the hub's client, without telemetry and logging, and turn its exceptions into ModelErrors with a remedy."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub.file_download  # also imports `errors` and `utils`

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    client: Any = huggingface_hub
    errors, login = client.errors, "log in with `hf auth login`"
    accept, later = f"accept its licence on its page, {login}, and pull again", "and what has arrived is kept"
    try:
        yield client
    except errors.OfflineModeIsEnabled as error:
        what = f"{repository} cannot be pulled because HF_HUB_OFFLINE is set"
        raise ModelError(what, "unset it, or give a file or a folder") from error
    except errors.GatedRepoError as error:
        raise ModelError(f"{repository} is gated", accept) from error
    except errors.RepositoryNotFoundError as error:
        what = f"The hub has no model {repository} that is open to you"
        raise ModelError(what, f"check the name, or {login}") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in (401, 403):
            raise ModelError(f"The hub refuses {repository} ({status})", accept) from error
        if status == 404:
            raise ModelError(f"A file of {repository} is gone from the hub (404)", "pull again") from error
        raise ModelError(f"The hub answers {status} for {repository}", f"pull again later, {later}") from error
    except errors.HTTPError as error:
        what = f"There is no network here, or the hub does not answer ({first_line(error)})"
        raise ModelError(what, f"pull {repository} again when it does, {later}") from error
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):  # pull reports the path and the remedy
            raise
        raise ModelError(f"{repository} did not arrive whole ({first_line(error)})", f"pull again, {later}") from error
