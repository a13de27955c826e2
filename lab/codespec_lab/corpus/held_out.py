"""Texts for model evaluation: held-out projects, held-out parts of the standard library, and HumanEval."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from codespec.errors import TrainingError
from codespec_lab.corpus.documents import Document, read_documents
from codespec_lab.corpus.sources import LANGUAGES
from codespec_lab.corpus.standard_library import held_out_files

LIBRARY = "stdlib"  # a separate package and row, because its texts depend on the machine's Python


@dataclass(frozen=True, slots=True)
class Task:
    """One HumanEval problem: its prompt and the body that solves it."""

    name: str
    prompt: str
    solution: str


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Documents by row of a report (a language, or the standard library), each sorted by package and path.

    `digests` are hashes of the texts; `note` describes what is missing.
    """

    rows: dict[str, list[Document]]
    tasks: tuple[Task, ...] = ()
    digests: dict[str, str] = field(default_factory=dict)
    note: str = ""


def read_held_out(file: Path, *, named: bool, prompts: Path | None = None) -> HeldOut:
    """Read the projects in `file`, the standard library's held-out parts, and the HumanEval file `prompts` if given.

    `named` is true if the user named `file`; otherwise it may be missing or empty, and the note says so. Raises
    TrainingError for a missing, damaged or empty file, and if there is no text at all.
    """
    documents, note = _library(), ""
    digests = {"stdlib": _digest_of(documents)} if documents else {}
    if named or _has_content(file):
        projects = read_documents(file)
        digests["projects"] = _digest_of(projects)
        documents = [*projects, *documents]
    else:
        note = "no held-out projects: the held-out parts of the standard library only"
    if not documents:
        raise TrainingError("There is no held-out code: run `codespec train corpus`, or name a file by --corpus-held.")
    tasks = read_tasks(prompts) if prompts else ()
    if tasks:
        digests["prompts"] = _digest_of(tasks)
    return HeldOut(by_row(documents), tasks, digests, note)


def _has_content(file: Path) -> bool:
    """Return whether a file exists and is not an empty archive, as written by a corpus without held-out projects."""
    try:
        with gzip.open(file) as opened:
            return bool(opened.read(1))
    except FileNotFoundError:
        return False
    except (OSError, EOFError):
        return True  # damaged: `read_documents` reports it


def by_row(documents: Sequence[Document]) -> dict[str, list[Document]]:
    """Return documents by language, sorted, with the standard library as a separate row at the end."""
    rows: dict[str, list[Document]] = {}
    for document in sorted(documents, key=lambda d: (d.package == LIBRARY, d.language, d.package, d.path)):
        rows.setdefault(LIBRARY if document.package == LIBRARY else document.language, []).append(document)
    return rows


def read_tasks(file: Path) -> tuple[Task, ...]:
    """Read a HumanEval file (JSON lines, may be gzipped). Raises TrainingError with the invalid line."""
    try:
        text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        lines = [line for line in text.decode("utf-8").splitlines() if line.strip()]
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TrainingError(f"The prompts file {file} can't be read ({error}): check the path.") from error
    if not lines:
        raise TrainingError(f"The prompts file {file} is empty: give HumanEval's JSON lines.")
    return tuple(_task(file, number, line) for number, line in enumerate(lines, 1))


def _task(file: Path, number: int, line: str) -> Task:
    try:
        row = json.loads(line)
        return Task(str(row.get("task_id", number)), str(row["prompt"]), str(row["canonical_solution"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TrainingError(
            f"{file}, line {number}: not a JSON object with `prompt` and `canonical_solution`: correct that line."
        ) from error


def _library() -> list[Document]:
    return [
        Document(LIBRARY, inside, LANGUAGES[path.suffix], path.read_text(encoding="utf-8"))
        for inside, path in held_out_files()
    ]


def _digest_of(items: Sequence[Document] | Sequence[Task]) -> str:
    return hashlib.sha256("\0".join(map(repr, items)).encode()).hexdigest()
