"""Turns documents, and lessons where there are some, into training rows: windows, fill-in-the-middle in both orders,
packing.

Knows tokenizers and layouts, no model. Row `i` depends on the seed and `i` alone, so a resumed run
sees the same data. Fill-in-the-middle follows Bavarian et al. 2022 (PSM and SPM, cuts between characters).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from codespec.training.corpus import Document
from codespec.training.cross_entropy import IGNORED
from codespec.training.cuts import Cut, cut_anywhere
from codespec.training.lessons import Lesson
from codespec.training.vocabularies import (
    END,
    FILE_SEPARATOR,
    FIM_MIDDLE,
    FIM_PAD,
    FIM_PREFIX,
    FIM_SUFFIX,
    without_dummy_prefix,
)

FIM_SHARE = 0.5
PATH_SHARE = 0.3
REPOSITORY_SHARE = 0.2  # of the samples with room enough: another file of the project stands before
LESSON_SHARE = 0.5  # of the samples, where there are lessons
NEIGHBOUR_SHARE = 0.7  # of those: from the same folder, where there is one
LEAST_ROOM = 48
LEAST_FIM_CHARS = 80


class Spelling:
    """Encodes text at the start of a piece and in the middle of one; holds the layout tokens' ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._start = Tokenizer.from_str(tokenizer.to_str())
        self._middle = without_dummy_prefix(tokenizer)
        for copy in (self._start, self._middle):
            copy.encode_special_tokens = True
        self.end, self.pad = self._id(END), self._id(FIM_PAD)
        self.prefix, self.suffix, self.middle = map(self._id, (FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE))
        self.file = self._id(FILE_SEPARATOR)

    def _id(self, token: str) -> int:
        found = self._start.token_to_id(token)
        assert found is not None, token
        return found

    def start(self, text: str) -> list[int]:
        """Ids of a piece that begins a prompt part, with a dummy prefix where the tokenizer has one."""
        return self._start.encode(text, add_special_tokens=False).ids if text else []

    def inside(self, text: str) -> list[int]:
        """Ids of text that continues what stands before it: exactly its bytes."""
        return self._middle.encode(text, add_special_tokens=False).ids if text else []


def fim_ids(cut: Cut, spelling: Spelling, room: int, *, order: str, joint: bool) -> list[int] | None:
    """Ids of one sample in `order` ("psm" or "spm"), at most `room`; None if the middle does not fit.

    The suffix gives way first, down to a quarter, then the prefix loses its head. With `joint`, prefix and
    middle of an spm sample are spelled as one text; otherwise tokens end at the cursor, as in a prompt.
    """
    assert order in ("psm", "spm")
    if joint and order == "spm":
        before, middle = spelling.start(cut.prefix + cut.middle), []
    else:
        before, middle = spelling.start(cut.prefix), spelling.inside(cut.middle)
    suffix = spelling.start(cut.suffix)
    free = room - 4 - len(middle)
    if free < 16:
        return None
    suffix = suffix[: max(free // 4, free - len(before))]
    before = before[max(0, len(before) - (free - len(suffix))) :]
    if order == "psm":
        return [spelling.prefix, *before, spelling.suffix, *suffix, spelling.middle, *middle, spelling.end]
    return [spelling.prefix, spelling.suffix, *suffix, spelling.middle, *before, *middle, spelling.end]


def count_windows(documents: Sequence[Document], stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Every window's document and first character, each [windows]."""
    owners, starts = [], []
    for index, document in enumerate(documents):
        offsets = np.arange(0, max(1, len(document.text) - stride // 4), stride)
        owners.append(np.full(len(offsets), index))
        starts.append(offsets)
    return np.concatenate(owners), np.concatenate(starts)


class Project:
    """Which documents lie in the same package, and which of them in the same folder; documents go by index."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._package: dict[str, list[int]] = {}
        self._folder: dict[tuple[str, str], list[int]] = {}
        self._keys = [(d.package, d.path.rpartition("/")[0]) for d in documents]
        for index, key in enumerate(self._keys):
            self._package.setdefault(key[0], []).append(index)
            self._folder.setdefault(key, []).append(index)

    def choose(self, owner: int, rng: np.random.Generator) -> int | None:
        """Another document of the owner's project, rather from its folder; None if it is alone."""
        near = self._folder[self._keys[owner]]
        pool = near if len(near) > 1 and rng.random() < NEIGHBOUR_SHARE else self._package[self._keys[owner][0]]
        chosen = pool[int(rng.integers(len(pool)))]
        return None if chosen == owner else chosen


class SampleStream:
    """An endless, seekable stream of training rows over a corpus, and what a target wrote there if that is given."""

    def __init__(
        self,
        documents: Sequence[Document],
        tokenizer: Tokenizer,
        *,
        seed: int,
        stride: int = 1600,
        lessons: Sequence[Lesson] = (),
    ) -> None:
        self._documents = documents
        self._lessons = lessons
        self._spelling = Spelling(tokenizer)
        self._seed = seed
        self._owners, self._starts = count_windows(documents, stride)
        self._project = Project(documents)
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)
        probe = "\n".join(document.text[:2000] for document in documents[:: max(1, len(documents) // 50)])
        self._chars_per_token = len(probe) / max(1, len(self._spelling.start(probe)))

    def batch(self, first: int, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """Rows `first` … `first + rows - 1` as (ids, labels), each [rows, length]."""
        table = np.array([self.row(index, length + 1) for index in range(first, first + rows)])
        ids, labels = torch.from_numpy(table[:, :-1].copy()), torch.from_numpy(table[:, 1:].copy())
        labels[labels == self._spelling.pad] = IGNORED
        return ids, labels

    def row(self, index: int, length: int) -> list[int]:
        """`length` ids: one window's sample, then random windows' while there is room, then padding."""
        rng = np.random.default_rng([self._seed, 1, index])
        window, ids = self._window(index), list[int]()
        while length - len(ids) >= LEAST_ROOM:
            ids += self._sample(window, length - len(ids), rng)
            window = int(rng.integers(len(self._owners)))
        return ids + [self._spelling.pad] * (length - len(ids))

    def _window(self, index: int) -> int:
        epoch, place = divmod(index, len(self._owners))
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self._seed, 0, epoch]).permutation(len(self._owners))
        return int(self._order[place])

    def _sample(self, window: int, room: int, rng: np.random.Generator) -> list[int]:
        if self._lessons and rng.random() < LESSON_SHARE:
            return self._lesson(self._lessons[int(rng.integers(len(self._lessons)))], room, rng)
        owner = int(self._owners[window])
        document = self._documents[owner]
        header = self._header(owner, room, rng) if room >= 4 * LEAST_ROOM else []
        start = _line_start(document.text, int(self._starts[window]))
        return header + self._body(document.text, start, room - len(header), rng)

    def _lesson(self, lesson: Lesson, room: int, rng: np.random.Generator) -> list[int]:
        """A target's text behind the prompt it answered, its head cut where there is too little room."""
        spelling = self._spelling
        if lesson.suffix:
            cut, order = Cut(lesson.prefix, lesson.middle, lesson.suffix), "psm" if rng.random() < 0.5 else "spm"
            ids = fim_ids(cut, spelling, room, order=order, joint=False)
            if ids is not None:
                return ids if lesson.ended else ids[:-1]
        written = spelling.inside(lesson.middle) + [spelling.end] * lesson.ended
        before = spelling.start(lesson.prefix)
        return [*before[max(0, len(before) + len(written) - room) :], *written][:room]

    def _header(self, owner: int, room: int, rng: np.random.Generator) -> list[int]:
        """What stands before a sample in a prompt: nothing, the file's path, or another file and then the path."""
        kind = rng.random()
        if kind >= PATH_SHARE + REPOSITORY_SHARE:
            return []
        head = self._head(self._documents[owner])
        if kind < REPOSITORY_SHARE and (other := self._project.choose(owner, rng)) is not None:
            neighbour = self._documents[other]
            start = _line_start(neighbour.text, int(rng.integers(max(1, len(neighbour.text) - 200))))
            excerpt = neighbour.text[start : start + int(room * self._chars_per_token / 2)]
            before = self._head(neighbour) + self._spelling.inside(excerpt)
            head = before[: max(0, room // 2 - len(head))] + head
        return head if len(head) <= room // 2 else []

    def _head(self, document: Document) -> list[int]:
        return [self._spelling.file, *self._spelling.inside(document.path + "\n")]

    def _body(self, text: str, start: int, room: int, rng: np.random.Generator) -> list[int]:
        if rng.random() < FIM_SHARE:
            excerpt = text[start : start + int(room * self._chars_per_token)]
            order, joint = ("psm" if rng.random() < 0.5 else "spm"), rng.random() < 0.5
            if len(excerpt) >= LEAST_FIM_CHARS:
                ids = fim_ids(cut_anywhere(excerpt, rng), self._spelling, room, order=order, joint=bool(joint))
                if ids is not None:
                    return ids
        excerpt = text[start : start + int(room * self._chars_per_token * 1.5)]
        ids = self._spelling.start(excerpt)
        if start + len(excerpt) >= len(text):
            ids.append(self._spelling.end)
        return ids[:room]


def _line_start(text: str, offset: int) -> int:
    """The first line start at or shortly behind `offset`; `offset` itself if none is near."""
    if offset == 0:
        return 0
    found = text.find("\n", offset - 1, offset + 400)
    return offset if found < 0 or found + 1 >= len(text) else found + 1
