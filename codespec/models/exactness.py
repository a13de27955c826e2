"""Whether a model's arithmetic is row-invariant here: the start-up check behind `exact`.

A row's logits and its keys and values must not change by a bit with its neighbours, with how many rows are computed at
once, or with the chunks a prefill came in. Kernels decide that, so it is tried on the model itself at start (MODELS.md,
"Batch, width and rounding"). Knows one model, no requests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from codespec.models.language_model import LanguageModel, Rows

LENGTH = 64
BEFORE, TOGETHER = 8, ((1, 1, 1), (2, 2, 2), (1, 4, 1))  # rows of sequences that are computed together
CHUNKS = (1, 9, 2, 5, 17, 3, 8, 1, 1, 6, 4)


def find_variance(model: LanguageModel) -> str:
    """Returns "" if the model is row-invariant, else what differs. Uses slots 0 to 2, which must be free."""
    length = min(LENGTH, model.spec.max_length)
    assert model.cache is not None and model.cache.slots >= 2 and model.cache.capacity >= length
    ids = [(31 * i + 7) % max(8, min(model.spec.vocab_size, 900)) for i in range(length)]
    other = [(17 * i + 5) % max(8, min(model.spec.vocab_size, 900)) for i in range(length)]
    for slot in (0, 1):
        model.admit(slot, length)
    whole = model.forward([Rows(0, 0, ids, keep=length)])
    reference = [
        (model.cache.read(i, 0, length)[0].clone(), model.cache.read(i, 0, length)[1].clone()) for i in model.shapes
    ]
    start, count = 0, 0
    while start < length:
        rows = min(CHUNKS[count % len(CHUNKS)], length - start)
        batch = [Rows(0, start, ids[start : start + rows], keep=rows)]
        if count % 3:
            batch.insert(0, Rows(1, 0, other[: count + 1], keep=0))
        if not torch.equal(model.forward(batch), whole[start : start + rows]):
            return f"the logits of {model.spec.architecture} depend on how rows are batched ({model.spec.dtype})"
        start, count = start + rows, count + 1
    for layer, (keys, values) in zip(model.shapes, reference, strict=True):
        now = model.cache.read(layer, 0, length)
        if not (torch.equal(now[0], keys) and torch.equal(now[1], values)):
            return f"the cache of {model.spec.architecture} depends on how rows are batched ({model.spec.dtype})"
    if not _same_together(model, ids, whole):
        return f"the logits of {model.spec.architecture} depend on who is attended together ({model.spec.dtype})"
    return ""


def _same_together(model: LanguageModel, ids: list[int], whole: Tensor) -> bool:
    """Whether several sequences at once, which are attended in one call, say what `whole` [length, vocabulary] does.
    Uses slots 0 to 2, where there are as many.
    """
    assert model.cache is not None
    slots = range(3)
    if model.cache.slots < slots.stop or len(ids) < BEFORE + sum(map(max, TOGETHER)):
        return True
    for slot in slots:
        model.admit(slot, len(ids))
    model.forward([Rows(slot, 0, ids[:BEFORE], keep=0) for slot in slots])
    starts = dict.fromkeys(slots, BEFORE)
    for counts in TOGETHER:
        spans = [(slot, starts[slot], starts[slot] + rows) for slot, rows in zip(slots, counts, strict=True)]
        said = model.forward([Rows(slot, start, ids[start:end], keep=end - start) for slot, start, end in spans])
        if not torch.equal(said, torch.cat([whole[start:end] for _, start, end in spans])):
            return False
        starts = {slot: end for slot, _, end in spans}
    for slot in slots:
        model.rollback(slot, 0)
    return True
