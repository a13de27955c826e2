"""Texts of the corpus for a head to learn from, as people wrote them.

A head is taught what the target expects at each token, and for that the target has to read a text, not to write it:
reading costs a forward for hundreds of tokens, writing one for each. Knows documents; knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from codespec.errors import TrainingError
from codespec_lab.corpus.documents import Document
from codespec_lab.training.distill.texts import DistillationExample

BEFORE, SUFFIX, TEXT = 500, 300, 1500  # characters of a gap's prefix, suffix and text; together about 800 tokens
START = 40  # characters that a plain text begins behind
LEAST = 400  # of a text
FIM_SHARE = 0.5


def corpus_texts(documents: Sequence[Document], count: int, *, seed: int) -> list[DistillationExample]:
    """`count` long texts, half of them to be filled in and half that go on; rare languages are not forgotten.

    Raises TrainingError if no document is long enough.
    """
    long = [document for document in documents if len(document.text) >= START + LEAST]
    if not long:
        raise TrainingError("The corpus has no file long enough to learn from: collect more packages.")
    rng = np.random.default_rng([seed, 7])
    pools: dict[str, list[Document]] = {}
    for document in long:
        pools.setdefault(document.language, []).append(document)
    languages = list(pools.values())
    shares = np.sqrt([len(pool) for pool in languages])
    picked = rng.choice(len(languages), size=count, p=shares / shares.sum())
    return [_cut(languages[pool][int(rng.integers(len(languages[pool])))], rng) for pool in picked]


def _cut(document: Document, rng: np.random.Generator) -> DistillationExample:
    """A text of a document, behind the beginning of a line or in the middle of one."""
    text = document.text
    fills_in = bool(rng.random() < FIM_SHARE)
    before = BEFORE if fills_in else START
    first = int(rng.integers(START, max(START + 1, len(text) - TEXT - SUFFIX)))
    if rng.random() < 0.5:
        first = max(START, text.rfind("\n", 0, first) + 1)
    last = min(first + TEXT + (0 if fills_in else BEFORE + SUFFIX), len(text))
    suffix = text[last : last + SUFFIX] if fills_in else ""
    return DistillationExample(
        document.path, text[max(0, first - before) : first], text[first:last], suffix, ended=False
    )
