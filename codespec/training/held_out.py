"""The texts that a pair is evaluated on: whole held-out projects, held-out parts of the standard library, HumanEval.

Knows files and their formats, and in which row of a table each text counts; chooses no places in them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from codespec.errors import TrainingError
from codespec.training.corpus import Document, read_documents
from codespec.training.sources import LANGUAGES, held_out_files

LIBRARY = "stdlib"  # its package, and its row: the machine's Python decides what it holds


@dataclass(frozen=True, slots=True)
class Task:
    """One HumanEval problem: what stands above, and the function's body."""

    name: str
    prompt: str
    solution: str


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Documents by row, each row sorted by package and path; `digests` name what was read, `note` what was not."""

    rows: dict[str, list[Document]]
    tasks: tuple[Task, ...] = ()
    digests: dict[str, str] = field(default_factory=dict)
    note: str = ""


def read_held_out(file: Path, *, named: bool, prompts: Path | None = None) -> HeldOut:
    """Everything there is to evaluate on.

    Without `named` (nobody asked for that file) a missing one leaves the standard library alone, and the note says so.
    Raises TrainingError for a file that is missing, damaged or empty, or where there is no text at all.
    """
    documents, note = _library(), ""
    digests = {"stdlib": _digest_of(documents)} if documents else {}
    if named or _holds_something(file):
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


def _holds_something(file: Path) -> bool:
    """Whether a file is there and not an empty archive, which a corpus without held-out projects leaves."""
    try:
        with gzip.open(file) as opened:
            return bool(opened.read(1))
    except FileNotFoundError:
        return False
    except (OSError, EOFError):
        return True  # damaged: reading it says so


def by_row(documents: Sequence[Document]) -> dict[str, list[Document]]:
    """Documents by language, the standard library on its own; sorted, so that a rule can choose among them."""
    rows: dict[str, list[Document]] = {}
    for document in sorted(documents, key=lambda d: (d.package == LIBRARY, d.language, d.package, d.path)):
        rows.setdefault(LIBRARY if document.package == LIBRARY else document.language, []).append(document)
    return rows


def read_tasks(file: Path) -> tuple[Task, ...]:
    """The problems of a HumanEval file (.gz is unpacked). TrainingError names the line that is none."""
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
            f"{file}, line {number}: not a JSON object with `prompt` and `canonical_solution`: mend that line."
        ) from error


def _library() -> list[Document]:
    return [
        Document(LIBRARY, inside, LANGUAGES[path.suffix], path.read_text(encoding="utf-8"))
        for inside, path in held_out_files()
    ]


def _digest_of(items: Sequence[Document] | Sequence[Task]) -> str:
    return hashlib.sha256("\0".join(map(repr, items)).encode()).hexdigest()
