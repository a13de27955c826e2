"""The stages that make distillation data: the user's source files, some of them held out by a hash of their paths;
positions in them; the target's texts there; and its distributions in those texts.

Each part is saved as soon as it is made. The number of parts is fixed by settings or by the clock, once, and then kept.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from codespec_grammars import find_language

from codespec.engine.engine import Engine
from codespec.errors import TrainingError
from codespec.exclusions.ignore_files import IgnoreFiles, repository_of
from codespec.exclusions.secrets import is_secret
from codespec.files import NotUtf8, read_text
from codespec.pair import source_files
from codespec_lab.corpus.build import Deduplicator, is_written_by_hand
from codespec_lab.corpus.documents import Document
from codespec_lab.corpus.sources import stdlib_package
from codespec_lab.corpus.standard_library import held_out_files
from codespec_lab.progress import StageBar
from codespec_lab.training.distill.lessons import TextOrigin
from codespec_lab.training.distill.places import FIM_SHARE, Place, choose_places, load_places, request_at, save_places
from codespec_lab.training.distill.teacher import Expected, Teacher
from codespec_lab.training.distill.texts import GROUP, DistillationExample, write_group
from codespec_lab.training.distill.work import WorkFolder

HELD_SHARE = 8  # one file in HELD_SHARE is held out
MIN_FILES = 2
MAX_BYTES = 1 << 20  # maximum file size
PLACES_A_MINUTE = 60  # more than the supported machines can write
READ_TIMES = 4  # positions to read per position to write
REHEARSED = 5  # one position in REHEARSED is in general code, against forgetting
HERE, ELSEWHERE = 40, 24  # positions to measure, and as many again to choose the best weights
PART = 128  # texts per part


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
    if len(documents) < MIN_FILES:
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
        if file.stat().st_size > MAX_BYTES:
            return None
        text = read_text(file)
    except (OSError, NotUtf8):
        return None
    if "\0" in text or not is_written_by_hand(text):
        return None
    return Document(package, name, find_language(path=name), text)


def _place(document: Document) -> tuple[str, str]:
    return document.package, document.path


@dataclass(frozen=True, slots=True)
class Places:
    """Positions to write, to read, to choose the best weights, and to measure; the last two are disjoint."""

    written: list[Place]
    read: list[Place]
    judge_here: list[Place]
    judge_elsewhere: list[Place]
    here: list[Place]
    elsewhere: list[Place]


def prepare_places(
    folder: Path, code: Callable[[], Split], general: Callable[[], Split], count: int, *, seed: int, fills_in: bool
) -> Places:
    """Return all positions of a run, loaded from the work folder or chosen now."""
    names = ("written", "read", "judge-here", "judge-elsewhere", "here", "elsewhere")
    files = [folder / f"places-{name}.jsonl.gz" for name in names]
    if not all(file.exists() for file in files):
        share = FIM_SHARE if fills_in else 0.0
        own, other = code(), general()

        def choose(documents: Sequence[Document], number: int, turn: int) -> list[Place]:
            return choose_places(documents, number, seed=seed + 1000 * turn, fill_in=share) if number else []

        def mixed(number: int, turn: int) -> list[Place]:
            there = choose(other.learned, number // REHEARSED, turn + 1)
            return _mix(choose(own.learned, number - len(there), turn), there)

        here, elsewhere = choose(own.held_out, 2 * HERE, 4), choose(other.held_out, 2 * ELSEWHERE, 5)
        found = (
            mixed(count, 0),
            mixed(READ_TIMES * count, 2),
            *(here[::2], elsewhere[::2]),
            *(here[1::2], elsewhere[1::2]),
        )
        for file, places in zip(files, found, strict=True):
            save_places(file, places)
    return Places(*(load_places(file) for file in files))


def write_texts(
    writer: Callable[[], Engine], places: Sequence[Place], work: WorkFolder, bar: StageBar, *, seed: int, until: float
) -> list[list[DistillationExample]]:
    """Return the target's texts at the positions, in parts: all of them, or those begun within `until` seconds."""
    parts, engine = list[list[DistillationExample]](), None
    for number in range(math.ceil(len(places) / GROUP)):
        part = work.load_part("written", number)
        if part is None:
            if work.is_decided("written") or (number and work.seconds >= until):
                break
            engine = engine or writer()
            first = number * GROUP
            group = enumerate(places[first : first + GROUP], first)
            part = write_group(engine.complete, [request_at(place, index, seed=seed) for index, place in group])
            work.save_part("written", number, part)
        elif work.is_decided("written") and number >= work.decide("written", int):
            break
        parts.append(part)
        share = max(work.seconds / until, len(parts) * GROUP / len(places))
        bar.update(share, f"{sum(map(len, parts))} texts  {max(0.0, until - work.seconds) / 60:.1f} min left at most")
    return parts[: work.decide("written", lambda: len(parts))]


def to_read(places: Sequence[Place]) -> list[list[DistillationExample]]:
    """Return the human-written texts at the positions, in parts."""
    texts = [DistillationExample(p.path, p.prefix, p.middle, p.suffix, ended=False) for p in places if p.middle]
    return [texts[start : start + PART] for start in range(0, len(texts), PART)]


def read_texts(
    teacher: Callable[[], Teacher],
    kind: TextOrigin,
    parts: Sequence[list[DistillationExample]],
    work: WorkFolder,
    bar: StageBar,
    *,
    until: float,
) -> list[tuple[DistillationExample, Expected]]:
    """Return the texts with the target's distributions: all parts, or those begun within `until` seconds of the run."""
    decision, found = f"{kind} taught", list[tuple[DistillationExample, Expected]]()
    for number, part in enumerate(parts):
        if work.is_decided(decision) and number >= work.decide(decision, int):
            break
        kept = work.has_expected(kind, number)
        if not kept and number and work.seconds >= until:
            break
        found += zip(part, work.expected(kind, number, lambda part=part: teacher().read(part)), strict=True)  # type: ignore[misc]
        bar.update((number + 1) / len(parts), f"{len(found)} texts read")
        done = number + 1
    work.decide(decision, lambda: done if parts else 0)
    return found


def _mix(own: Sequence[Place], other: Sequence[Place]) -> list[Place]:
    """Insert one of the other positions after every REHEARSED - 1 of `own`."""
    mixed, rest = list[Place](), list(other)[::-1]
    for number, place in enumerate(own, 1):
        mixed.append(place)
        if number % (REHEARSED - 1) == 0 and rest:
            mixed.append(rest.pop())
    return [*mixed, *rest[::-1]]
