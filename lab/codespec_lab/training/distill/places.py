"""Choose editing positions in documents by seed, spread over languages and syntactic contexts, and cut texts there."""

from __future__ import annotations

import gzip
import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from codespec_grammars import ContextTracker, find_language

from codespec.api.types import CompletionRequest
from codespec.errors import TrainingError
from codespec_lab.corpus.documents import Document, write_atomically

REST_OF_LINE, WHOLE_LINE = 0.4, 0.35  # shares of `cut_where_edited`; the other cuts span a few lines
MAX_LINES = 5
PREFIX_CHARS, SUFFIX_CHARS = 700, 300  # prefill is most of the cost of a text
MIN_CHARS = 400  # minimum characters of a document
MAX_TOKENS = 96
FIM_SHARE = 0.5
SAMPLED_SHARE = 0.25
TEMPERATURE = 0.8
CANDIDATES = 2  # candidates per chosen position
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cut:
    """A text cut in three between characters."""

    prefix: str
    middle: str
    suffix: str


def count_windows(documents: Sequence[Document], stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the document index and the first character of every window, each [windows]."""
    owners, starts = [], []
    for index, document in enumerate(documents):
        offsets = np.arange(0, max(1, len(document.text) - stride // 4), stride)
        owners.append(np.full(len(offsets), index))
        starts.append(offsets)
    return np.concatenate(owners), np.concatenate(starts)


def cut_anywhere(text: str, rng: np.random.Generator) -> Cut:
    """Cut between characters (Bavarian et al. 2022): 45 % to a line's end, 30 % several lines, 25 % any span."""
    start = int(len(text) * rng.uniform(0.05, 0.95))
    kind = rng.random()
    if kind < 0.75:
        extra = 0 if kind < 0.45 else int(rng.integers(1, 6))
        end = start
        for _ in range(extra + 1):
            line_end = text.find("\n", end + 1 if end > start else end)
            end = len(text) if line_end < 0 else line_end
    else:
        end = min(len(text), start + 1 + int(rng.exponential(150.0)))
    return Cut(text[:start], text[start:end], text[end:])


def cut_where_edited(text: str, rng: np.random.Generator) -> Cut:
    """Cut where people edit: the middle is the rest of a line, a whole line, or a few lines."""
    lines = text.split("\n")
    filled = [number for number, line in enumerate(lines[:-1]) if line.strip()] or [0]
    number = filled[int(rng.integers(len(filled)))]
    kind = rng.random()
    count = 1 if kind < REST_OF_LINE + WHOLE_LINE else int(rng.integers(2, MAX_LINES + 1))
    line = lines[number]
    indent = len(line) - len(line.lstrip())
    if kind < REST_OF_LINE:
        column = int(rng.integers(indent, max(indent + 1, len(line))))
    else:
        column = 0 if rng.random() < 0.4 else indent
    before = sum(len(line) + 1 for line in lines[:number]) + column
    middle = "\n".join([line[column:], *lines[number + 1 : number + count]])
    return Cut(text[:before], middle, text[before + len(middle) :])


class Place(NamedTuple):
    """A cursor between `prefix` and `suffix` in the file `path`; `middle` is the text there.

    Plain text has no suffix.
    """

    path: str
    prefix: str
    suffix: str
    middle: str


def choose_places(documents: Sequence[Document], count: int, *, seed: int, fill_in: float = FIM_SHARE) -> list[Place]:
    """Choose `count` positions, a share `fill_in` of them with a suffix; rare languages and contexts are included.

    Raise TrainingError if no document is long enough.
    """
    long = [document for document in documents if len(document.text) >= MIN_CHARS]
    if not long:
        raise TrainingError("The corpus has no file long enough to learn from: collect more packages.")
    rng = np.random.default_rng([seed, 3])
    by_language = draw(long, [document.language for document in long], CANDIDATES * count, rng)
    candidates = [_cut(document, number, seed, fill_in) for number, document in enumerate(by_language)]
    return deal(candidates, [context_class(place) for place in candidates], count, rng)


def context_class(place: Place) -> str:
    """Return the cursor's syntactic context, as named by `codespec_grammars`."""
    tracker = ContextTracker(find_language(path=place.path), place.prefix.encode(), place.suffix.encode())
    return tracker.context().context.value


def request_at(place: Place, number: int, *, seed: int, sampled: float = SAMPLED_SHARE) -> CompletionRequest:
    """Return the target's request at a position: greedy, or sampled according to seed and number."""
    rng = np.random.default_rng([seed, 5, number])
    return CompletionRequest(
        prefix=place.prefix,
        suffix=place.suffix,
        max_tokens=MAX_TOKENS,
        temperature=TEMPERATURE if rng.random() < sampled else 0.0,
        seed=number,
        path=place.path,
    )


def save_places(path: Path, places: Iterable[Place]) -> None:
    """Write one JSON list per line, gzipped; equal positions give equal bytes. Raise TrainingError."""
    lines = b"".join(json.dumps(place, ensure_ascii=False).encode() + b"\n" for place in places)
    write_atomically(path, gzip.compress(lines, mtime=0))


def load_places(path: Path) -> list[Place]:
    """Read a file that `save_places` wrote. Raise TrainingError if it is missing or damaged."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [Place(*json.loads(line)) for line in file]
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise TrainingError(f"The places in {path} cannot be read ({error}): begin without --resume.") from error


def _cut(document: Document, number: int, seed: int, fill_in: float) -> Place:
    """Return an editing position in a document, chosen by seed and number."""
    rng = np.random.default_rng([seed, 2, number])
    text = document.text
    start = int(rng.integers(max(1, len(text) - PREFIX_CHARS)))
    start = text.rfind("\n", 0, start + 1) + 1
    cut = cut_where_edited(text[start : start + PREFIX_CHARS + SUFFIX_CHARS], rng)
    fills_in = rng.random() < fill_in or (not cut.prefix and fill_in > 0)  # an empty prefix fails on some targets
    prefix = cut.prefix[-PREFIX_CHARS:] or ("" if fills_in else "\n")
    return Place(document.path, prefix, cut.suffix[:SUFFIX_CHARS] if fills_in else "", cut.middle)


def _pools(items: Sequence[T], keys: Sequence[Hashable]) -> list[list[T]]:
    pools: dict[Hashable, list[T]] = {}
    for item, key in zip(items, keys, strict=True):
        pools.setdefault(key, []).append(item)
    return list(pools.values())


def draw(items: Sequence[T], keys: Sequence[Hashable], count: int, rng: np.random.Generator) -> list[T]:
    """Draw `count` items; a key is drawn with the square root of its frequency."""
    pools = _pools(items, keys)
    shares = np.sqrt([len(pool) for pool in pools])
    picked = rng.choice(len(pools), size=count, p=shares / shares.sum())
    return [pools[pool][int(rng.integers(len(pools[pool])))] for pool in picked]


def deal(items: Sequence[T], keys: Sequence[Hashable], count: int, rng: np.random.Generator) -> list[T]:
    """Draw `count` items without replacement; a key is drawn with the square root of its frequency."""
    pools = [pool[::-1] for pool in _pools(items, keys)]
    shares = np.sqrt([len(pool) for pool in pools])
    dealt = list[T]()
    while len(dealt) < count and any(pools):
        left = shares * [bool(pool) for pool in pools]
        dealt.append(pools[int(rng.choice(len(pools), p=left / left.sum()))].pop())
    return dealt
