"""Whether a model's arithmetic is row-invariant here: the start-up check behind `exact`.

A row's logits and its keys and values must not change by a bit with its neighbours, with how many rows are computed at
once, or with the chunks a prefill came in. Kernels decide that, so it is tried on the model itself at start (MODELS.md,
"Batch, width and rounding"). Knows one model, no requests.
"""

from __future__ import annotations

import torch

from codespec.models.language_model import LanguageModel, Rows

LENGTH = 64
CHUNKS = (1, 9, 2, 5, 17, 3, 8, 1, 1, 6, 4)


def find_variance(model: LanguageModel) -> str:
    """Returns "" if the model is row-invariant, else what differs. Uses slots 0 and 1, which must be free."""
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
    return ""
