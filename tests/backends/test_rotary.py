"""Rotary variants that depend on length are chosen per request, unaffected by neighbours and rollback."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from codespec.backends.language_model import Rows
from codespec.backends.torch.model import TorchModel
from codespec.backends.torch.rotary import RequestRotary
from codespec.errors import ModelError
from tests.backends.rounds import Replay, covering
from tests.tiny_models import LONGROPE_LIMIT, sample_ids, tiny_model, tiny_network

LIMIT = 64
DYNAMIC: dict[str, Any] = {
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    "max_position_embeddings": LIMIT,
}
CASES = {
    "longrope": ("phi3", {}),
    "dynamic": ("llama", DYNAMIC),
    "dynamic, neighbouring pairs": ("cohere", DYNAMIC),
    "dynamic, a part of each head": (
        "gpt_neox",
        {**DYNAMIC, "rope_parameters": {**DYNAMIC["rope_parameters"], "partial_rotary_factor": 0.5}},
    ),
    "dynamic, angles once": ("gpt_oss", DYNAMIC),
}


def make(case: str, **more: Any) -> TorchModel:
    architecture, changes = CASES[case]
    return tiny_model(architecture, **changes, **more)


def eager(case: str, ids: list[int]) -> Tensor:
    architecture, changes = CASES[case]
    with torch.inference_mode():
        network = tiny_network(architecture, attention="eager", **changes)
        logits: Tensor = network(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return logits


def whole(model: TorchModel, ids: list[int], limit: int) -> Tensor:
    model.allocate(1, 512)
    model.admit(0, limit)
    return model.forward([Rows(0, 0, ids, keep=len(ids))])


def relative(got: Tensor, wanted: Tensor) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("length", [20, LIMIT, LIMIT + 1, 150])
def test_equals_eager_at_its_full_length(case: str, length: int) -> None:
    ids = sample_ids(length)
    assert relative(whole(make(case), ids, length), eager(case, ids)) <= 1e-4


@pytest.mark.parametrize("case", CASES)
def test_a_long_request_is_long_from_its_first_row(case: str) -> None:
    """Positions below the limit are also rotated as transformers does in the finished text."""
    ids = sample_ids(150)
    finished = eager(case, ids)
    model = make(case)
    assert relative(whole(model, ids[:30], 150), finished[:30]) <= 1e-4
    assert relative(whole(model, ids[:30], 30), finished[:30]) > 1e-2
    long = Replay(model, 150, [eager(case, sample_ids(150, seed)) for seed in range(3)])
    assert long.play(covering(150)) <= 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", ["longrope", "dynamic"])
def test_a_long_neighbour_changes_no_bit(case: str, dtype: torch.dtype) -> None:
    ids, neighbour = sample_ids(40), sample_ids(150, 1)
    model = make(case, dtype=dtype)
    alone = whole(model, ids, 50)
    model.allocate(2, 512)
    model.admit(0, 50)
    model.admit(1, 200)
    model.forward([Rows(1, 0, neighbour[:100])])
    first = model.forward([Rows(1, 100, neighbour[100:120]), Rows(0, 0, ids[:25], keep=25)])[1:]
    model.forward([Rows(0, 25, [1, 2, 3]), Rows(1, 120, neighbour[120:])])
    model.rollback(0, 25)
    second = model.forward([Rows(0, 25, ids[25:], keep=15), Rows(1, 150, [5])])[:15]
    assert torch.equal(torch.cat([first, second]), alone)


def test_slots_take_the_rotation_of_their_new_request() -> None:
    model = make("longrope")
    ids = sample_ids(30)
    short = whole(model, ids, 30)
    long = whole(model, ids, 150)
    model.allocate(1, 512)
    for limit, wanted in ((150, long), (30, short), (150, long)):
        model.admit(0, limit)
        assert torch.equal(model.forward([Rows(0, 0, ids, keep=30)]), wanted)
    assert not torch.equal(short, long)


def test_keys_tell_which_prefixes_can_be_shared() -> None:
    model = make("longrope")
    assert model.rotary_key(1) == model.rotary_key(LONGROPE_LIMIT) != model.rotary_key(LONGROPE_LIMIT + 1)
    assert model.rotary_key(LONGROPE_LIMIT + 1) == model.rotary_key(5000)
    model = make("dynamic")
    assert model.rotary_key(1) == model.rotary_key(LIMIT)
    assert len({model.rotary_key(length) for length in (LIMIT, 65, 66, 150)}) == 4
    assert tiny_model("llama").rotary_key(5) == tiny_model("llama").rotary_key(5000)


def test_an_unknown_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from codespec.backends.torch import rotary

    monkeypatch.setattr(rotary, "LAYOUTS", {"once": rotary.LAYOUTS["once"]})
    with pytest.raises(ModelError, match=r"lays out its angles .*: choose a model with another rotary embedding"):
        make("longrope")


def test_only_length_dependent_rotaries_are_replaced() -> None:
    assert not [m for m in tiny_model("gemma2").network.modules() if isinstance(m, RequestRotary)]
    assert [m for m in make("dynamic").network.modules() if isinstance(m, RequestRotary)]
