"""Cut human-written training texts for a head from the corpus.

A head learns the target's distribution at each token, so the target only has to read a text: one forward covers
hundreds of tokens, whereas generation needs one forward per token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from codespec.errors import TrainingError
from codespec_lab.corpus.documents import Document
from codespec_lab.training.distill.texts import DistillationExample

BEFORE, SUFFIX, TEXT = 500, 300, 1500  # characters of a gap's prefix, suffix and text; together about 800 tokens
START = 40  # characters before the beginning of a plain text
LEAST = 400  # minimum characters of a text
FIM_SHARE = 0.5


def corpus_texts(documents: Sequence[Document], count: int, *, seed: int) -> list[DistillationExample]:
    """Return `count` long texts, half with a suffix to fill in before and half plain continuations.

    Languages are drawn by the square root of their file counts, so rare ones are included. Raise TrainingError if no
    document is long enough.
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
    """Cut a text from a document, at a line start or within a line."""
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
