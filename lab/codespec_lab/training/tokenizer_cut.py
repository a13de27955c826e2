"""Cut a byte-level BPE tokenizer to the tokens that a corpus uses most.

A drafter with the target's own tokens needs one forward per target token and only a small output head. Removed tokens
are spelled with shorter ones, so any text can still be encoded.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tokenizers import AddedToken, Tokenizer

from codespec.errors import TrainingError
from codespec_lab.training.tokenizer_training import SPECIALS

BATCH = 256  # texts encoded at once

Merge = tuple[str, str]


def keep_most_used(tokenizer: Tokenizer, texts: Sequence[str], size: int) -> Tokenizer:
    """Return a tokenizer of `size` tokens: SPECIALS, all bytes, and the tokens most frequent in `texts`.

    Each kept token brings the shorter tokens that its merges need. Raise TrainingError if `tokenizer` is not BPE or the
    texts use too few tokens.
    """
    saved = json.loads(tokenizer.to_str())
    if saved["model"]["type"] != "BPE":
        raise TrainingError("Only a byte-level BPE tokenizer can be cut to its most used tokens: give another model.")
    merges: list[Merge] = [tuple(merge) for merge in saved["model"]["merges"]]
    parts = {left + right: (left, right) for left, right in merges}
    ids: dict[str, int] = saved["model"]["vocab"]
    added = {str(token["content"]) for token in saved["added_tokens"]}
    kept = dict.fromkeys(token for token in ids if token not in parts and token not in added)
    for token in _by_use(tokenizer, texts):
        needed = [part for part in _closure(token, parts) if part not in kept] if token and token in parts else []
        if len(kept) + len(needed) <= size - len(SPECIALS):
            kept |= dict.fromkeys(needed)
    if len(kept) + len(SPECIALS) < size:
        raise TrainingError(f"The corpus uses {len(kept)} of the tokens: fewer than the {size} that were asked for.")
    ordered = [*SPECIALS, *sorted(kept, key=ids.__getitem__)]
    saved["model"]["vocab"] = {token: number for number, token in enumerate(ordered)}
    saved["model"]["merges"] = [list(merge) for merge in merges if "".join(merge) in kept]
    saved["added_tokens"], saved["normalizer"] = [], None
    cut = Tokenizer.from_str(json.dumps(saved))
    cut.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return cut


def _by_use(tokenizer: Tokenizer, texts: Sequence[str]) -> list[str | None]:
    """Return all tokens of the texts, the most frequent first; ties are ordered by id."""
    used: Counter[int] = Counter()
    for start in range(0, len(texts), BATCH):
        for encoding in tokenizer.encode_batch(texts[start : start + BATCH], add_special_tokens=False):
            used.update(encoding.ids)
    ranked = sorted(used, key=lambda token: (-used[token], token))
    return [tokenizer.id_to_token(token) for token in ranked]


def _closure(token: str, parts: Mapping[str, Merge]) -> Iterator[str]:
    """Yield the token and all tokens that its merges need."""
    yield token
    for part in parts.get(token, ()):
        yield from _closure(part, parts)
