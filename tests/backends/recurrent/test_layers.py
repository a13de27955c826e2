"""Recurrent layers row by row: right, and the same bits in any batch and after any rollback."""

from __future__ import annotations

from random import Random

import pytest
import torch
from torch import Tensor

from codespec.backends.language_model import Rows
from codespec.backends.torch.loader import wrap
from codespec.backends.torch.model import TorchModel
from tests.backends.rounds import SLOTS, Replay, gap, random_rounds, scripts
from tests.tiny_models import RECURRENT, sample_ids, tiny_model, tiny_network

LENGTH = 200
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "native": torch.float32}

# One kind in every format; the others compute with the same products.
FORMATS = [("qwen3_5", form) for form in DTYPES]
every_kind = pytest.mark.parametrize("architecture", RECURRENT)


def load(architecture: str, form: str = "float32") -> TorchModel:
    """Return a tiny model in a format, exact on this processor."""
    if form != "native":
        return tiny_model(architecture, dtype=DTYPES[form])
    network = tiny_network(architecture)
    device = torch.device("cpu")
    return wrap(network, None, architecture, device=device, dtype=torch.float32, exact=True, native=True)  # type: ignore[arg-type]


def states_at(model: TorchModel, slot: int, length: int) -> list[Tensor]:
    """Return the states after the first `length` positions of a slot, and the rows from which it goes on."""
    assert model.cache is not None and model.cache.states is not None
    store = model.cache.states
    model.rollback(slot, length)
    model.forward([Rows(slot, length, [7])])  # moves the base to `length`
    place = store.places[slot]
    assert place.base == length
    rows = store.history + length - place.base
    parts = [(layer.states[slot, place.base_at], layer.rows[slot, :rows]) for layer in store.layers.values()]
    return [part.clone() for pair in parts for part in pair]


@every_kind
def test_the_logits_are_transformers_own(architecture: str) -> None:
    ids = sample_ids(LENGTH)
    with torch.inference_mode():
        wanted = tiny_network(architecture, attention="eager")(torch.tensor([ids])).logits[0].float()
    model = load(architecture)
    model.allocate(1, LENGTH)
    got = model.forward([Rows(0, 0, ids, keep=LENGTH)])
    assert gap(got, wanted) < 1e-4
    assert torch.equal(got.argmax(1), wanted.argmax(1))


@pytest.mark.parametrize(
    ("architecture", "form"), [*FORMATS, *((name, "float32") for name in RECURRENT if name != "qwen3_5")]
)
def test_rounds_of_acceptance_and_rollback_change_no_bit(architecture: str, form: str) -> None:
    model = load(architecture, form)
    replay = Replay(model, LENGTH)
    assert replay.play(random_rounds(1, 24)) == 0.0
    assert replay.rows > 200


@pytest.mark.parametrize(("architecture", "form"), [*FORMATS, ("olmo_hybrid", "float32"), ("lfm2", "float32")])
def test_the_states_after_any_pattern_are_those_of_a_fresh_prefill(architecture: str, form: str) -> None:
    model, random, ids = load(architecture, form), Random(3), sample_ids(LENGTH)
    model.allocate(2, LENGTH)
    length, wrong = 0, sample_ids(LENGTH, seed=5)
    while length < 150:
        accepted, rejected = random.choice((0, 1, 1, 3, 9, 30)), random.choice((0, 0, 1, 4, 8))
        rows = [*ids[length : length + accepted], *wrong[:rejected]]
        beside = [Rows(1, 0, wrong[: random.randint(1, 9)])] if random.random() < 0.5 else []
        if rows or beside:
            model.forward([*([Rows(0, length, rows)] if rows else []), *beside])
        length = model.resume(0, length + accepted)
    found = states_at(model, 0, length)
    model.allocate(1, LENGTH)
    model.forward([Rows(0, 0, ids[:length], keep=0)])
    assert all(torch.equal(a, b) for a, b in zip(found, states_at(model, 0, length), strict=True))


@every_kind
def test_a_prompt_in_chunks_beside_others(architecture: str) -> None:
    model = load(architecture)
    whole = []
    for text in scripts(512, LENGTH):
        model.allocate(1, LENGTH)
        whole.append(model.forward([Rows(0, 0, text, keep=LENGTH)]))
    model.allocate(SLOTS, LENGTH)
    for start, end in ((0, 97), (97, 98), (98, 199), (199, 200)):
        batch = [Rows(slot, start, text[start:end], keep=end - start) for slot, text in enumerate(scripts(512, LENGTH))]
        got = model.forward(batch).split(end - start)
        assert all(torch.equal(part, rows[start:end]) for part, rows in zip(got, whole, strict=True))
        for slot in range(SLOTS):
            model.rollback(slot, end)
