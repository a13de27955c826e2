"""Every architecture with codespec's attention equals transformers' own eager attention.

Random rounds are compared with whole prefills in test_exact.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface

from codespec.backends.language_model import Rows
from tests.backends.rounds import Replay, covering, scripts
from tests.tiny_models import ARCHITECTURES, WINDOW, tiny_model, tiny_network

LENGTH = 100  # several windows, and beyond longrope's limit
LONG = 620  # more than one block of keys
OWN_ATTENTION = ("gptj", "bloom")
SUPPORTED = [name for name in ARCHITECTURES if name not in OWN_ATTENTION]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "one head for all": ("llama", {"num_key_value_heads": 1}),
    "no groups": ("llama", {"num_key_value_heads": 4}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "tied head": ("gpt2", {"tie_word_embeddings": True}),
    "tied lean head": ("llama", {"tie_word_embeddings": True}),
    "another activation": ("qwen2", {"hidden_act": "gelu"}),
    "heads wider than the model": ("mistral", {"head_dim": 48}),
    "no window": ("qwen2", {"use_sliding_window": False}),
    "a window that Llama does not read": ("llama", {"sliding_window": WINDOW}),
    "a third of each head turned": (
        "gpt_neox",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.375}},
    ),
}


def eager_logits(architecture: str, length: int, **changes: Any) -> list[Tensor]:
    """Return logits with transformers' own attention, masks and positions over whole texts."""
    network = tiny_network(architecture, attention="eager", **changes)
    with torch.inference_mode():
        texts = scripts(network.config.vocab_size, length)
        return [network(input_ids=torch.tensor([ids]), use_cache=False).logits[0] for ids in texts]


def check(architecture: str, length: int, **changes: Any) -> None:
    replay = Replay(tiny_model(architecture, **changes), length, eager_logits(architecture, length, **changes))

    assert replay.play(covering(length)) <= 1e-4
    assert replay.rows == 3 * length


@pytest.mark.parametrize("architecture", SUPPORTED)
def test_ragged_chunks_equal_eager(architecture: str) -> None:
    check(architecture, LENGTH)


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_equal_eager(variant: str) -> None:
    architecture, changes = VARIANTS[variant]
    check(architecture, LENGTH, **changes)


@pytest.mark.parametrize("architecture", ["qwen2", "gpt_oss"])
def test_beyond_one_block_of_keys_equals_eager(architecture: str) -> None:
    replay = Replay(tiny_model(architecture), LONG, eager_logits(architecture, LONG))
    assert replay.play(covering(LONG)) <= 1e-4
    assert replay.rows == 3 * LONG


def test_the_lean_blocks_are_used_where_they_are_meant_to_be() -> None:
    lean = {name for name in SUPPORTED if tiny_model(name).spec.lean}
    assert lean == {"llama", "mistral", "qwen2", "qwen3"}


def test_logits_come_sequence_by_sequence() -> None:
    model = tiny_model("llama")
    model.allocate(2, 32)
    one, two = scripts(512, 12)[:2]
    alone = [model.forward([Rows(0, 0, ids, keep=12)]) for ids in (one, two)]
    together = model.forward([Rows(1, 0, two, keep=3), Rows(0, 0, one, keep=0)])
    assert torch.equal(together, alone[1][-3:])
    assert model.cache is not None and model.cache.lengths == [12, 12]
    assert model.forward([Rows(0, 0, one, keep=0)]).shape == (0, 512)
    pair = model.forward([Rows(0, 0, one), Rows(1, 0, two, keep=2)])
    assert torch.equal(pair, torch.cat([alone[0][-1:], alone[1][-2:]]))


def test_no_mask_of_transformers_is_built() -> None:
    """A mask would copy keys and values for grouped heads, or be wrong for mixed windows."""
    from codespec.backends.torch import attention

    seen: list[Any] = []
    plain = attention.attend

    def watch(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, *rest: Any, **named: Any) -> Any:
        seen.append((mask, query.shape[1], key.shape[1]))
        return plain(module, query, key, value, mask, *rest, **named)

    model = tiny_model("gemma2")
    AttentionInterface.register(attention.NAME, watch)
    try:
        model.allocate(1, 32)
        model.forward([Rows(0, 0, list(range(20)))])
    finally:
        attention.register()
    assert seen == [(None, 4, 2)] * 2  # heads, heads of keys and values: not expanded
