"""Exact mode: after any acceptance, rejection, batching and chunking, logits and caches equal those of a whole prefill.

In float32 and bfloat16, bit for bit. Fast mode: to 1e-5 in float32.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings

from codespec.backends.torch import loader
from codespec.startup.batch_invariance import find_variance
from tests.backends.rounds import Replay, Round, covering, rounds
from tests.tiny_models import MIXTURES, tiny_model, tiny_network

DTYPES = [torch.float32, torch.bfloat16]
ARCHITECTURES = [
    "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt_neox", "phi3", "starcoder2", "gpt2", "cohere", "opt",
    *MIXTURES,
]  # fmt: skip
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    f"{architecture} groups {groups} size {size}": (
        architecture,
        {
            "num_attention_heads": heads,
            "num_key_value_heads": heads // groups,
            "head_dim": size,
            "hidden_size": 16 * heads,
        },
    )
    for architecture, heads, groups, size in (
        ("llama", 2, 1, 64),
        ("gemma2", 6, 3, 80),
    )
}
ODD: dict[str, tuple[str, dict[str, Any]]] = {
    "odd vocabulary": ("llama", {"vocab_size": 501}),
    "odd inner size": ("llama", {"intermediate_size": 333}),
    "odd inner size of GELU": ("gpt_neox", {"intermediate_size": 333}),
    "odd hidden size": ("llama", {"hidden_size": 100, "head_dim": 32}),
}
LONG = 620  # more than one block of keys
BOTH = ("llama", "gemma2", "mixtral")  # played in bfloat16 too; the rest is under full
FORMATS = [
    pytest.param(name, dtype, marks=() if dtype == torch.float32 or name in BOTH else pytest.mark.full)
    for dtype in DTYPES
    for name in ARCHITECTURES
]


def check_bits(replay: Replay, examples: int = 1, count: int = 12, chunk: int = 40) -> None:
    assert replay.play(covering(replay.length)) == 0.0
    assert replay.rows == 3 * replay.length

    @settings(max_examples=examples)
    @given(rounds(count, chunk))
    def play(played: list[Round]) -> None:
        assert replay.play(played) == 0.0

    play()


def name_of(value: object) -> str:
    return str(value).removeprefix("torch.")


@pytest.mark.parametrize(("architecture", "dtype"), FORMATS, ids=name_of)
def test_rounds(architecture: str, dtype: torch.dtype) -> None:
    """Fixed rounds over every position, then random rounds."""
    model = tiny_model(architecture, dtype=dtype)
    check_bits(Replay(model, 90))
    if architecture in BOTH:
        model.allocate(2, 64)
        assert find_variance(model) == ""


@pytest.mark.full
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_many_rounds(architecture: str, dtype: torch.dtype) -> None:
    check_bits(Replay(tiny_model(architecture, dtype=dtype), LONG), examples=10, count=200, chunk=300)


@pytest.mark.parametrize(("shape", "dtype"), [*zip(SHAPES, DTYPES[::-1], strict=True)], ids=name_of)
def test_beyond_one_block_of_keys(shape: str, dtype: torch.dtype) -> None:
    architecture, changes = SHAPES[shape]
    check_bits(Replay(tiny_model(architecture, dtype=dtype, **changes), LONG), count=8, chunk=300)


@pytest.mark.parametrize(("shape", "dtype"), [*zip(ODD, DTYPES * 2, strict=True)], ids=name_of)
def test_sizes_that_fill_no_vector(shape: str, dtype: torch.dtype) -> None:
    architecture, changes = ODD[shape]
    check_bits(Replay(tiny_model(architecture, dtype=dtype, **changes), 40))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_transformers_layers_where_lean_ones_would_be_chosen(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "make_lean", lambda network, seam: None)
    network = tiny_network("qwen3", dtype=dtype)
    model = loader.wrap(network, None, "tiny", device=torch.device("cpu"), dtype=dtype, exact=True)  # type: ignore[arg-type]
    assert not model.spec.lean
    check_bits(Replay(model, 40))


@pytest.mark.parametrize("architecture", [*BOTH, "gpt2", "phi3"])
def test_fast_mode_is_close(architecture: str) -> None:
    assert Replay(tiny_model(architecture, exact=False), 90).play(covering(90)) <= 1e-5


def test_a_context_shorter_than_the_check_is_checked_as_far_as_it_goes() -> None:
    model = tiny_model("gpt2", n_positions=50)
    model.allocate(2, 50)
    assert find_variance(model) == ""
