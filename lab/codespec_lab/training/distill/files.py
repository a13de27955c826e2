"""Read the user's source files as documents, and split off held-out files by a hash of the path."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from codespec_grammars import find_language

from codespec.errors import TrainingError
from codespec.ignore_files import IgnoreFiles, repository_of
from codespec.pair.sample import held_out_files, source_files
from codespec.regular_file import NotUtf8, read_text
from codespec.secret_files import is_secret
from codespec_lab.corpus.build import Deduplicator, is_written_by_hand
from codespec_lab.corpus.documents import Document
from codespec_lab.corpus.sources import stdlib_package

HELD_SHARE = 8  # one file in HELD_SHARE is held out
LEAST_FILES = 2
MOST_BYTES = 1 << 20  # maximum file size


class Split(NamedTuple):
    """Documents for training, and documents that are only measured on."""

    learned: list[Document]
    held_out: list[Document]


def read_code(folders: Sequence[Path]) -> list[Document]:
    """Return the hand-written source files below the folders as documents.

    Skip copies, secrets, and hidden, ignored, installed or generated files. Ignore files apply as in an editor, except
    that one above a folder cannot exclude the whole folder. Raise TrainingError if a folder is missing or has no such
    file.
    """
    seen, documents = Deduplicator(), list[Document]()
    for folder in folders:
        found = _read_folder(folder)
        if not found:
            raise TrainingError(f"{folder} holds no source code to learn from: name a folder with code in --code.")
        documents += [document for document in found if seen.is_new(document.text)]
    return documents


def split(documents: Sequence[Document]) -> Split:
    """Hold out the eighth of the files, at least one, whose paths have the smallest hashes.

    Raise TrainingError if no file would be left for training.
    """
    if len(documents) < LEAST_FILES:
        raise TrainingError(
            "The code is a single file, and one must be held out to measure: name a folder with more in --code."
        )
    ordered = sorted(documents, key=lambda d: hashlib.sha256(f"{d.package}/{d.path}".encode()).digest())
    held = -(-len(ordered) // HELD_SHARE)
    return Split(sorted(ordered[held:], key=_place), sorted(ordered[:held], key=_place))


def general_code() -> Split:
    """Return this Python's standard library, as general code to rehearse, and its held-out parts."""
    package = stdlib_package()
    learned = [_document(package.name, name, path) for name, path in package.files]
    held = [_document(package.name, name, path) for name, path in held_out_files()]
    return Split([d for d in learned if d is not None], [d for d in held if d is not None])


def _read_folder(folder: Path) -> list[Document]:
    if not folder.is_dir():
        raise TrainingError(f"There is no folder {folder}: name a folder with code in --code.")
    files, ignored, top = source_files(folder), IgnoreFiles(), folder.absolute()
    repository = repository_of(top / "_", [top])
    if repository and not ignored.reason_below(repository, top / "_"):  # an ignored folder is still read if it is named
        top = repository
    named = [
        (str(file.relative_to(folder)), file)
        for file in files
        if not is_secret(file.name) and not ignored.reason_below(top, file.absolute())
    ]
    found = [_document(folder.resolve().name, name, file) for name, file in named]
    return [document for document in found if document is not None]


def _document(package: str, name: str, file: Path) -> Document | None:
    """Return a file as a document; None if it is gone, too large, not UTF-8 text or not hand-written."""
    try:
        if file.stat().st_size > MOST_BYTES:
            return None
        text = read_text(file)
    except (OSError, NotUtf8):
        return None
    if "\0" in text or not is_written_by_hand(text):
        return None
    return Document(package, name, find_language(path=name), text)


def _place(document: Document) -> tuple[str, str]:
    return document.package, document.path
