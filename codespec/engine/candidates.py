"""Convert drafts to candidates: target tokens, each with the confidence of the drafted units that cover it.

All sequences of a step are retokenized in one batch.
"""

from __future__ import annotations

import collections.abc
import math

from codespec.proposers.base import NOTHING
from codespec.sequence import Candidates, Cap, Draft, Sequence
from codespec.text.align import retokenize_batch
from codespec.text.tokenizer import TextTokenizer

NONE = Candidates()


def to_candidates(
    tokenizer: TextTokenizer,
    sequences: collections.abc.Sequence[Sequence],
    drafts: collections.abc.Sequence[Draft],
    caps: collections.abc.Sequence[Cap],
) -> list[Candidates]:
    """Return the drafts in target tokens, cut to their caps."""
    spelled = [i for i, draft in enumerate(drafts) if draft.text and draft.ids is None]
    pairs = [(sequences[i].window(), drafts[i].text) for i in spelled]
    encoded = dict(zip(spelled, retokenize_batch(tokenizer, pairs) if pairs else [], strict=True))
    result = []
    for i, (draft, cap) in enumerate(zip(drafts, caps, strict=True)):
        if draft is NOTHING:
            result.append(NONE)
            continue
        ids = tuple(draft.ids if draft.ids is not None else encoded.get(i, ()))
        most = cap.of(draft.source).tokens
        reason = "cap" if len(ids) > most else "draft ended"
        ids = ids[:most]
        sizes = [len(tokenizer.token_bytes[token]) for token in ids]
        confidences = draft.confidences[: len(ids)] if draft.ids is not None else shared_out(draft, sizes)
        units, probabilities = len(draft.ends), draft.probabilities[: len(ids)]
        found = Candidates(ids, draft.source, reason, confidences, units, probabilities=probabilities)
        result.append(found if ids else NONE)
    return result


def keep_drawn(
    proposed: collections.abc.Sequence[Candidates], trimmed: collections.abc.Sequence[Candidates]
) -> list[Candidates]:
    """Return the trimmed candidates, but keep sampled drafts whole.

    Dropping a sampled token because of its value, or of later ones, would bias the distribution. The length of a
    sampled draft is decided before each token is sampled.
    """
    return [whole if whole.probabilities else part for whole, part in zip(proposed, trimmed, strict=True)]


def shared_out(draft: Draft, sizes: collections.abc.Sequence[int]) -> tuple[float, ...]:
    """Return a confidence for each token, given the token sizes in bytes.

    It is the product of the confidences of all units that overlap the token, or 1 after the last unit.
    """
    confidences, first, begin = [], 0, 0
    for size in sizes:
        end = begin + size
        while first < len(draft.ends) and draft.ends[first] <= begin:
            first += 1
        last = first
        while last + 1 < len(draft.ends) and draft.ends[last] < end:
            last += 1
        confidences.append(math.prod(draft.confidences[first : last + 1]))
        begin = end
    return tuple(confidences)
