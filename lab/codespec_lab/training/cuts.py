"""Windows of documents, and cuts of a window into prefix, middle and suffix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from codespec_lab.corpus.documents import Document

REST_OF_LINE, WHOLE_LINE = 0.4, 0.35  # shares of `cut_where_edited`; the other cuts span a few lines
MAX_LINES = 5


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
