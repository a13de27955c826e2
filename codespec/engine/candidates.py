"""Drafts become candidates: text in the target's tokens, each with the confidence of the units that spell it.

One batched encoding for all sequences of a step. Knows bytes, ids and confidences; knows no model and no policy.
"""

from __future__ import annotations

import collections.abc
import math

from codespec.proposers.base import NOTHING
from codespec.sequence import Candidates, Cap, Draft, Sequence
from codespec.text.align import retokenize_batch
from codespec.text.tokenizer import TextTokenizer

NONE = Candidates()
WINDOW = 64  # bytes of committed text that a draft is encoded behind


def to_candidates(
    tokenizer: TextTokenizer,
    sequences: collections.abc.Sequence[Sequence],
    drafts: collections.abc.Sequence[Draft],
    caps: collections.abc.Sequence[Cap],
) -> list[Candidates]:
    """Drafts in the target's tokens, cut to the caps."""
    spelled = [i for i, draft in enumerate(drafts) if draft.text and draft.ids is None]
    pairs = [(sequences[i].window(WINDOW), drafts[i].text) for i in spelled]
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
    """The trimmed candidates, but all of those that were drawn by chance: to drop one for what it is, or for what came
    behind it, would bend the distribution. How many are drawn is decided before each of them.
    """
    return [whole if whole.probabilities else part for whole, part in zip(proposed, trimmed, strict=True)]


def shared_out(draft: Draft, sizes: collections.abc.Sequence[int]) -> tuple[float, ...]:
    """For each token of so many bytes the product of the confidences of all units that it shares bytes with; 1 behind
    the last unit.
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
