"""Check that a model is batch-invariant: how rows are batched must not change logits, keys or values."""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence, Sequence
from contextlib import contextmanager
from random import Random

import torch
from torch import Tensor, nn

from codespec.backends.language_model import LanguageModel, Rows
from codespec.backends.torch.lean import LeanNetwork
from codespec.backends.torch.linear import NativeLinear, TiledLinear
from codespec.backends.torch.model import TorchModel

LENGTH, MIN_LENGTH = 640, 64  # tokens of the text (more than a block of keys), and the minimum for a slow model
CHUNK = 256  # rows of a prefill chunk
OPERATIONS = 4e10  # multiply-adds per check, which take about half a second


def check_exact(model: LanguageModel, notes: MutableSequence[str], chunk: int = CHUNK) -> str:
    """Return the result of `find_variance` in exact mode; on a variance, switch to fast mode and add a note."""
    assert isinstance(model, TorchModel)
    model.threads = None
    variance = find_variance(model, chunk) if model.exact else ""
    if variance:
        model.set_exact(False)
        model.variance = variance
        notes.append(f"exact mode does not hold here ({variance}): fast mode is used, near-ties may differ")
    if model.device.type == "cpu":
        model.threads = torch.get_num_threads()
    return variance


def find_variance(model: TorchModel, chunk: int = CHUNK) -> str:
    """Return "" if the model is batch-invariant, else a clause that names the differing outputs.

    A text's logits, keys and values, computed in chunks of `chunk` rows, are compared with those from random chunks
    batched with other texts. Only some layers of a large model are checked. Cache slots 0 to 2 must be free.
    """
    assert model.cache is not None and model.cache.slots >= 2
    length, layers = affordable(model)
    random = Random(0)
    ids, other = ([random.randrange(min(model.spec.vocab_size, 900)) for _ in range(length)] for _ in range(2))
    keep = max(4, min(length, 1_000_000 // model.spec.vocab_size))
    slots = range(min(3, model.cache.slots))
    with _shortened(model, layers):
        for slot in slots:
            model.admit(slot, length)
        whole = torch.cat([_read(model, 0, ids, start, chunk, keep) for start in range(0, length, chunk)])
        cached = {layer: [part.clone() for part in model.cache.read(layer, 0, length)] for layer in model.shapes}
        logits = _read_in_pieces(model, ids, other, keep, chunk, random)
        differing = "" if torch.equal(logits, whole) else "the logits"
        for layer, parts in cached.items():
            if not all(torch.equal(a, b) for a, b in zip(model.cache.read(layer, 0, length), parts, strict=True)):
                differing = differing or "the cache"
        for slot in slots:
            model.rollback(slot, 0)
    if not differing:
        return ""
    verb = "depend" if differing == "the logits" else "depends"
    return f"{differing} of {model.spec.architecture} {verb} on how rows are batched ({model.spec.dtype})"


def affordable(model: TorchModel) -> tuple[int, int]:
    """Return the number of tokens and of layers (0: all) that `find_variance` checks, within OPERATIONS on a CPU."""
    assert model.cache is not None
    length = min(LENGTH, model.spec.max_length, model.cache.capacity)
    if model.device.type != "cpu":
        return length, 0
    layers = [layer for layer in model.network.modules() if isinstance(layer, TiledLinear | NativeLinear)]
    matrices = [layer for layer in layers if layer.out_features != model.spec.vocab_size]
    weights = sum(layer.out_features * layer.in_features for layer in matrices)  # without the head
    if isinstance(model.network, LeanNetwork):  # its first layers can run alone
        blocks = len(model.network.blocks)
        return length, max(1, min(blocks, int(OPERATIONS * blocks / (4 * LENGTH * max(1, weights)))))
    return max(min(length, MIN_LENGTH), min(length, int(OPERATIONS / (4 * max(1, weights))))), 0


@contextmanager
def _shortened(model: TorchModel, layers: int) -> Iterator[None]:
    """Within the context, run only the first `layers` layers, without the output head (0: run the whole model)."""
    network, shapes = model.network, model.shapes
    if not isinstance(network, LeanNetwork) or not 0 < layers < len(network.blocks):
        yield
        return
    blocks, head = network.blocks, network.head
    network.blocks, network.head = blocks[:layers], nn.Identity()
    model.shapes = {layer: shape for layer, shape in shapes.items() if layer < layers}
    try:
        yield
    finally:
        network.blocks, network.head, model.shapes = blocks, head, shapes


def _read(model: TorchModel, slot: int, ids: Sequence[int], start: int, rows: int, keep: int) -> Tensor:
    """Compute the chunk at `start`, and return the logits of its rows that are among the text's last `keep` rows."""
    end = min(start + rows, len(ids))
    wanted = max(0, end - max(start, len(ids) - keep))
    return model.forward([Rows(slot, start, ids[start:end], keep=wanted)])[:wanted]


def _read_in_pieces(
    model: TorchModel, ids: Sequence[int], other: Sequence[int], keep: int, chunk: int, random: Random
) -> Tensor:
    """Return the logits of the text's last `keep` rows, from mostly small random chunks batched with other texts."""
    assert model.cache is not None
    found, start, length = [], 0, len(ids)
    while start < length:
        rows = random.choice((1, 1, 2, 3, 4, 5, 8, 9, 17, 33, 40, 64, 100, chunk))
        end = min(start + rows, length)
        wanted = max(0, end - max(start, length - keep))
        own = Rows(0, start, ids[start:end], keep=wanted)
        beside = [Rows(1, 0, other[: random.randint(1, 40)], keep=0)] if random.random() < 0.6 else []
        if beside and model.cache.slots > 2 and random.random() < 0.5:
            beside.append(Rows(2, 0, other[: random.randint(1, 9)], keep=0))
        batch = [own, *beside] if random.random() < 0.5 else [*beside, own]
        found.append(model.forward(batch)[:wanted])
        start = end
    return torch.cat(found)
