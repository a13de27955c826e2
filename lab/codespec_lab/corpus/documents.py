"""Source files with their text, stored on disk as compressed JSON lines."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from codespec.errors import TrainingError

CORPUS_NAME = "corpus.jsonl.gz"
HELD_OUT_NAME = "held_out.jsonl.gz"
MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class Document:
    """One source file; `path` is its path inside the package."""

    package: str
    path: str
    language: str
    text: str


def write_documents(path: Path, documents: Iterable[Document]) -> None:
    """Write one JSON object per line, gzipped; equal documents give equal bytes. Raises TrainingError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
            for d in documents:
                row = {"package": d.package, "path": d.path, "language": d.language, "text": d.text}
                file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    except OSError as error:
        raise TrainingError(f"The corpus cannot be written to {path}: {error.strerror}.") from error


def read_documents(path: Path) -> list[Document]:
    """Return every document of a corpus file. Raises TrainingError if the file is missing, damaged or empty."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            documents = [Document(**json.loads(line)) for line in file]
    except FileNotFoundError as error:
        raise TrainingError(f"There is no corpus at {path}; run `codespec train corpus` first.") from error
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise TrainingError(f"The corpus {path} is damaged; run `codespec train corpus` again.") from error
    if not documents:
        raise TrainingError(f"The corpus {path} is empty; run `codespec train corpus` with more packages.")
    return documents


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically, so that a kill leaves either the old file or the new one.

    If that fails, removes the partial file and raises TrainingError.
    """
    partial = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        reason = f"{path} cannot be written ({error.strerror})"
        raise TrainingError(f"{reason}; free some space or choose another folder.") from error
