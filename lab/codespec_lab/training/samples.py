"""Training rows for the starter pair: document windows, fill-in-the-middle samples, distilled texts, and packing.

Row `i` depends only on the seed and `i`, so a resumed run sees the same data. Fill-in-the-middle follows Bavarian et
al. 2022: prefix-suffix-middle and suffix-prefix-middle (PSM and SPM), cut between characters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from codespec_lab.corpus.documents import Document
from codespec_lab.training.distill.places import Cut, count_windows, cut_anywhere
from codespec_lab.training.distill.texts import DistillationExample
from codespec_lab.training.llama import IGNORED
from codespec_lab.training.tokenizer_training import (
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
REPOSITORY_SHARE = 0.2  # of the samples with enough room: another file of the project comes first
DISTILLED_SHARE = 0.5  # of the samples, if there are distilled texts
NEIGHBOUR_SHARE = 0.7  # of those other files: taken from the same folder if possible
STRIDE = 1600  # characters from window to window
MIN_ROOM = 48
MIN_FIM_CHARS = 80


class FimTokenizer:
    """A tokenizer of the pair and the ids of its fill-in-the-middle tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._start = Tokenizer.from_str(tokenizer.to_str())
        self._inside = without_dummy_prefix(tokenizer)
        for copy in (self._start, self._inside):
            copy.encode_special_tokens = True
        self.end, self.pad = self._id(END), self._id(FIM_PAD)
        self.prefix, self.suffix, self.middle = map(self._id, (FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE))
        self.file = self._id(FILE_SEPARATOR)

    def _id(self, token: str) -> int:
        found = self._start.token_to_id(token)
        assert found is not None, token
        return found

    def encode(self, text: str) -> list[int]:
        """Return the ids of text that begins a part of a prompt, with the dummy prefix if the tokenizer has one."""
        return self._start.encode(text, add_special_tokens=False).ids if text else []

    def encode_inside(self, text: str) -> list[int]:
        """Return the ids of text that continues other text: exactly its bytes, without a dummy prefix."""
        return self._inside.encode(text, add_special_tokens=False).ids if text else []


def fim_ids(cut: Cut, tokenizer: FimTokenizer, room: int, *, order: str, joint: bool) -> list[int] | None:
    """Return at most `room` ids of a sample in `order` ("psm" or "spm"), or None if the middle does not fit.

    The suffix is shortened first, down to a quarter of the free room; then the prefix loses its beginning. With
    `joint`, prefix and middle of an SPM sample are tokenized as one text; otherwise a token ends at the cursor, as in a
    prompt.
    """
    assert order in ("psm", "spm")
    if joint and order == "spm":
        before, middle = tokenizer.encode(cut.prefix + cut.middle), []
    else:
        before, middle = tokenizer.encode(cut.prefix), tokenizer.encode_inside(cut.middle)
    suffix = tokenizer.encode(cut.suffix)
    free = room - 4 - len(middle)
    if free < 16:
        return None
    suffix = suffix[: max(free // 4, free - len(before))]
    before = before[max(0, len(before) - (free - len(suffix))) :]
    if order == "psm":
        return [tokenizer.prefix, *before, tokenizer.suffix, *suffix, tokenizer.middle, *middle, tokenizer.end]
    return [tokenizer.prefix, tokenizer.suffix, *suffix, tokenizer.middle, *before, *middle, tokenizer.end]


class ProjectIndex:
    """Index of the documents that share a package or a folder."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._package: dict[str, list[int]] = {}
        self._folder: dict[tuple[str, str], list[int]] = {}
        self._keys = [(d.package, d.path.rpartition("/")[0]) for d in documents]
        for index, key in enumerate(self._keys):
            self._package.setdefault(key[0], []).append(index)
            self._folder.setdefault(key, []).append(index)

    def choose(self, owner: int, rng: np.random.Generator) -> int | None:
        """Return another document of the same package, preferably of the same folder; None if the draw hits `owner`."""
        near = self._folder[self._keys[owner]]
        pool = near if len(near) > 1 and rng.random() < NEIGHBOUR_SHARE else self._package[self._keys[owner][0]]
        chosen = pool[int(rng.integers(len(pool)))]
        return None if chosen == owner else chosen


class SampleStream:
    """An endless, seekable stream of training rows from a corpus and, if given, distilled texts."""

    def __init__(
        self,
        documents: Sequence[Document],
        tokenizer: Tokenizer,
        *,
        seed: int,
        distilled: Sequence[DistillationExample] = (),
    ) -> None:
        self._documents = documents
        self._distilled = distilled
        self._tokenizer = FimTokenizer(tokenizer)
        self._seed = seed
        self._owners, self._starts = count_windows(documents, STRIDE)
        self._projects = ProjectIndex(documents)
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)
        probe = "\n".join(document.text[:2000] for document in documents[:: max(1, len(documents) // 50)])
        self._chars_per_token = len(probe) / max(1, len(self._tokenizer.encode(probe)))

    def batch(self, first: int, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """Return rows `first` … `first + rows - 1` as (ids, labels), each [rows, length]."""
        table = np.array([self.row(index, length + 1) for index in range(first, first + rows)])
        ids, labels = torch.from_numpy(table[:, :-1].copy()), torch.from_numpy(table[:, 1:].copy())
        labels[labels == self._tokenizer.pad] = IGNORED
        return ids, labels

    def row(self, index: int, length: int) -> list[int]:
        """Return `length` ids: a sample of the window at `index`, samples of random windows that fit, then padding."""
        rng = np.random.default_rng([self._seed, 1, index])
        window, ids = self._window(index), list[int]()
        while length - len(ids) >= MIN_ROOM:
            ids += self._sample(window, length - len(ids), rng)
            window = int(rng.integers(len(self._owners)))
        return ids + [self._tokenizer.pad] * (length - len(ids))

    def _window(self, index: int) -> int:
        epoch, position = divmod(index, len(self._owners))
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self._seed, 0, epoch]).permutation(len(self._owners))
        return int(self._order[position])

    def _sample(self, window: int, room: int, rng: np.random.Generator) -> list[int]:
        if self._distilled and rng.random() < DISTILLED_SHARE:
            return self._distilled_sample(self._distilled[int(rng.integers(len(self._distilled)))], room, rng)
        owner = int(self._owners[window])
        document = self._documents[owner]
        header = self._header(owner, room, rng) if room >= 4 * MIN_ROOM else []
        start = _line_start(document.text, int(self._starts[window]))
        return header + self._body(document.text, start, room - len(header), rng)

    def _distilled_sample(self, example: DistillationExample, room: int, rng: np.random.Generator) -> list[int]:
        """Return the target's text after its prompt; the prompt loses its beginning if room is short."""
        tokenizer = self._tokenizer
        if example.suffix:
            cut, order = Cut(example.prefix, example.middle, example.suffix), "psm" if rng.random() < 0.5 else "spm"
            ids = fim_ids(cut, tokenizer, room, order=order, joint=False)
            if ids is not None:
                return ids if example.ended else ids[:-1]
        written = tokenizer.encode_inside(example.middle) + [tokenizer.end] * example.ended
        before = tokenizer.encode(example.prefix)
        return [*before[max(0, len(before) + len(written) - room) :], *written][:room]

    def _header(self, owner: int, room: int, rng: np.random.Generator) -> list[int]:
        """Return the ids before a sample: none, the path of its file, or another file and then the path."""
        kind = rng.random()
        if kind >= PATH_SHARE + REPOSITORY_SHARE:
            return []
        path = self._path_ids(self._documents[owner])
        if kind < REPOSITORY_SHARE and (other := self._projects.choose(owner, rng)) is not None:
            neighbour = self._documents[other]
            start = _line_start(neighbour.text, int(rng.integers(max(1, len(neighbour.text) - 200))))
            excerpt = neighbour.text[start : start + int(room * self._chars_per_token / 2)]
            before = self._path_ids(neighbour) + self._tokenizer.encode_inside(excerpt)
            path = before[: max(0, room // 2 - len(path))] + path
        return path if len(path) <= room // 2 else []

    def _path_ids(self, document: Document) -> list[int]:
        return [self._tokenizer.file, *self._tokenizer.encode_inside(document.path + "\n")]

    def _body(self, text: str, start: int, room: int, rng: np.random.Generator) -> list[int]:
        if rng.random() < FIM_SHARE:
            excerpt = text[start : start + int(room * self._chars_per_token)]
            order, joint = ("psm" if rng.random() < 0.5 else "spm"), rng.random() < 0.5
            if len(excerpt) >= MIN_FIM_CHARS:
                ids = fim_ids(cut_anywhere(excerpt, rng), self._tokenizer, room, order=order, joint=bool(joint))
                if ids is not None:
                    return ids
        excerpt = text[start : start + int(room * self._chars_per_token * 1.5)]
        ids = self._tokenizer.encode(excerpt)
        if start + len(excerpt) >= len(text):
            ids.append(self._tokenizer.end)
        return ids[:room]


def _line_start(text: str, offset: int) -> int:
    """Return the first line start at `offset` or up to 400 characters after it, or `offset` if there is none."""
    if offset == 0:
        return 0
    found = text.find("\n", offset - 1, offset + 400)
    return offset if found < 0 or found + 1 >= len(text) else found + 1
