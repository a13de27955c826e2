"""What a target writes at places of the corpus, for a drafter to learn: distillation as text.

The two have different vocabularies, so there are no common probabilities to match; what can be taught is the target's
own text (sequence-level distillation, Kim and Rush 2016; on drafters, DistillSpec, Zhou et al. 2023). A quarter is
sampled, so that the drafter also sees what follows a choice the target did not like best. Knows requests and
completions; knows no model and no tokenizer.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from codespec.errors import TrainingError
from codespec.training.checkpoint import write_atomically
from codespec.training.corpus import Document
from codespec.training.cuts import cut_where_edited
from codespec.training.infilling import Complete
from codespec.training.progress import Steps
from codespec.types import Completion, CompletionRequest

LESSONS_NAME = "lessons.jsonl.gz"
PREFIX_CHARS, SUFFIX_CHARS = 700, 300  # most of a lesson's cost is reading its prompt
LEAST_CHARS = 400  # of a document
TOKENS = 96
BATCH = 16  # texts at once
GROUP = 4 * BATCH  # texts a call: whoever has ended makes room for the next
FIM_SHARE = 0.5
SAMPLED_SHARE = 0.25
TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True)
class Lesson:
    """A target's text `middle` between a prefix and a suffix; `ended` says whether the target ended it itself."""

    path: str
    prefix: str
    middle: str
    suffix: str
    ended: bool


def lesson_request(document: Document, number: int, *, seed: int) -> CompletionRequest:
    """A place where somebody edits, by seed and number; with the text behind it or without, greedy or sampled."""
    rng = np.random.default_rng([seed, 2, number])
    text = document.text
    start = int(rng.integers(max(1, len(text) - PREFIX_CHARS)))
    start = text.rfind("\n", 0, start + 1) + 1
    cut = cut_where_edited(text[start : start + PREFIX_CHARS + SUFFIX_CHARS], rng)
    filled_in = rng.random() < FIM_SHARE or not cut.prefix  # of nothing, not every target can go on
    suffix = cut.suffix[:SUFFIX_CHARS] if filled_in else ""
    sampled = rng.random() < SAMPLED_SHARE
    return CompletionRequest(
        prefix=cut.prefix[-PREFIX_CHARS:],
        suffix=suffix,
        max_tokens=TOKENS,
        temperature=TEMPERATURE if sampled else 0.0,
        seed=number,
        path=document.path,
    )


def write_lessons(
    complete: Complete,
    documents: Sequence[Document],
    count: int,
    *,
    seed: int,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Lesson]:
    """`count` lessons, documents chosen by the seed; fewer where `stop` says so. TrainingError without documents."""
    long = [document for document in documents if len(document.text) >= LEAST_CHARS]
    if not long:
        raise TrainingError("The corpus has no file long enough to learn from: collect more packages.")
    chosen = _choose_documents(long, count, np.random.default_rng([seed, 3]))
    steps = Steps("lessons", count)
    for start in range(0, count, GROUP):
        if stop():
            return
        numbers = range(start, min(start + GROUP, count))
        asked = [lesson_request(chosen[number], number, seed=seed) for number in numbers]
        for request, done in zip(asked, complete(asked), strict=True):
            if done.text:
                yield _lesson(request, done)
        steps.advance(len(asked))


def _choose_documents(documents: Sequence[Document], count: int, rng: np.random.Generator) -> list[Document]:
    """Languages by the square root of what there is of them: the common ones often, the rare ones not seldom."""
    by_language: dict[str, list[Document]] = {}
    for document in documents:
        by_language.setdefault(document.language, []).append(document)
    pools = list(by_language.values())
    shares = np.sqrt([len(pool) for pool in pools])
    picked = rng.choice(len(pools), size=count, p=shares / shares.sum())
    return [pools[pool][int(rng.integers(len(pools[pool])))] for pool in picked]


def _lesson(request: CompletionRequest, done: Completion) -> Lesson:
    return Lesson(request.path, request.prefix, done.text, request.suffix, done.finish_reason == "stop")


def save_lessons(path: Path, lessons: Sequence[Lesson]) -> None:
    """One JSON object a line, gzip; the same bytes for the same lessons. TrainingError on a full disk."""
    lines = b"".join(json.dumps(asdict(lesson), ensure_ascii=False).encode() + b"\n" for lesson in lessons)
    write_atomically(path, gzip.compress(lines, mtime=0))


def read_lessons(path: Path) -> list[Lesson]:
    """All lessons of a file. Raises TrainingError if it is missing, broken or empty."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            lessons = [Lesson(**json.loads(line)) for line in file]
    except FileNotFoundError as error:
        raise TrainingError(f"There are no lessons at {path}; run `codespec train lessons` first.") from error
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise TrainingError(f"The lessons {path} are damaged; run `codespec train lessons` again.") from error
    if not lessons:
        raise TrainingError(f"The lessons {path} are empty; run `codespec train lessons` with more places.")
    return lessons
