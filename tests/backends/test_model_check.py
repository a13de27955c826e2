"""The loader's check of an architecture: it is rejected if codespec would compute something else than transformers."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from codespec.backends.torch import attention
from codespec.backends.torch.cache import KVCache
from codespec.backends.torch.loader import wrap
from codespec.backends.torch.model import TorchModel
from codespec.backends.torch.model_check import gap, quiet
from codespec.errors import ModelError
from tests.tiny_models import WINDOW, tiny_model, tiny_network

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    "pad_token_id": 0,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
EXPERTS = {"num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1}
REFUSED: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "a window that only the mask knows": ("Phimoe", "ForCausalLM", {**GROUPED, **EXPERTS}, "window of 16 in its mask"),
    "a window on some layers": (
        "Qwen2Moe",
        "ForCausalLM",
        {**GROUPED, **EXPERTS, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
         "use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]},
        "layer 1 has a window of 16 in its mask",
    ),
    "chunks": (
        "Llama4",
        "ForCausalLM",
        {**GROUPED, **EXPERTS, "head_dim": 16, "intermediate_size_mlp": 96, "attention_chunk_size": WINDOW,
         "layer_types": ["chunked_attention", "full_attention"]},
        "has a window of 16 in its mask",
    ),
    "positions of its own": ("Roberta", "ForCausalLM", {**SMALL, "is_decoder": True}, "its own attention by"),
    "it sees what follows": ("Llama", "ForCausalLM", {**GROUPED, "is_causal": False}, "its own attention by"),
    "recurrent layers": (
        "Jamba",
        "ForCausalLM",
        {**GROUPED, **EXPERTS, "use_mamba_kernels": False, "attn_layer_period": 2, "attn_layer_offset": 1,
         "expert_layer_period": 4, "expert_layer_offset": 3},
        "",
    ),
    "cross rows": ("Bart", "ForCausalLM", {**SMALL, "d_model": 64, "decoder_layers": 1, "decoder_ffn_dim": 96}, ""),
    "no interface": (
        "Bloom",
        "ForCausalLM",
        {"vocab_size": 128, "hidden_size": 64, "n_layer": 1, "n_head": 4},
        "no layer calls the interface",
    ),
}  # fmt: skip


def network_of(name: str, ending: str, values: dict[str, Any]) -> Any:
    attention.register()
    kind = next(k for k in (f"{name}TextConfig", f"{name}Config") if hasattr(transformers, k))
    with quiet():
        values = deepcopy({"sliding_window": WINDOW, **values} if name in ("Phimoe", "Qwen2Moe") else values)
        config = getattr(transformers, kind)(**values)
        torch.manual_seed(0)
        model = getattr(transformers, name + ending)
        return model._from_config(config, attn_implementation=attention.NAME, dtype=torch.float32)


def load(network: Any, dtype: torch.dtype = torch.float32) -> TorchModel:
    return wrap(network, None, "tiny", device=torch.device("cpu"), dtype=dtype, exact=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    name, ending, values, words = REFUSED[case]
    with pytest.raises(ModelError) as caught:
        load(network_of(name, ending, values))
    message = str(caught.value)
    assert words in message
    assert message.startswith(name) and ": choose another architecture" in message and message.endswith(".")
    assert "\n" not in message


def test_a_window_beyond_the_models_length_does_not_matter() -> None:
    values = {**GROUPED, **EXPERTS, "sliding_window": 256}
    assert load(network_of("Phimoe", "ForCausalLM", values)).shapes


# In float16, which is slow here, gpt-oss stands for Gemma 2: the same products; soft caps and sinks are in float32.
ACCEPTED = [
    (architecture, dtype)
    for architecture in ("llama", "gemma2", "gpt_oss", "mixtral", "cohere")
    for dtype in DTYPES
    if (architecture, dtype) != ("gemma2", torch.float16) and (architecture == "llama" or dtype != torch.float32)
]


@pytest.mark.parametrize(("architecture", "dtype"), ACCEPTED, ids=lambda value: str(value))
def test_accepted_in_every_dtype(architecture: str, dtype: torch.dtype) -> None:
    model = tiny_model(architecture, dtype=dtype)
    assert model.cache is None and set(model.shapes) == {0, 1}
    assert model.spec.dtype == str(dtype).removeprefix("torch.")


def blind_to_positions(patch: pytest.MonkeyPatch) -> None:
    plain = TorchModel._call
    patch.setattr(
        TorchModel, "_call", lambda self, step, ids, positions, kept: plain(self, step, ids, positions * 2, kept)
    )


def first_rows_for_last(patch: pytest.MonkeyPatch) -> None:
    """Behave like a model that ignores `logits_to_keep`."""
    plain = TorchModel._call

    def all_rows(self: TorchModel, step: Any, ids: torch.Tensor, positions: Any, kept: torch.Tensor) -> torch.Tensor:
        return plain(self, step, ids, positions, torch.arange(len(ids)) if len(kept) > 1 else kept)

    patch.setattr(TorchModel, "_call", all_rows)


def attends_to_neighbours(patch: pytest.MonkeyPatch) -> None:
    """Make all rows read the first slot."""
    plain = KVCache.read
    patch.setattr(KVCache, "read", lambda self, layer, slot, end: plain(self, layer, 0, end))


def caches_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("codespec.backends.torch.cache.KVCache.write", lambda *_: None)


@pytest.mark.parametrize(
    "fault", [blind_to_positions, first_rows_for_last, attends_to_neighbours, caches_nothing], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("architecture", ["llama", "gpt_neox"])
def test_a_broken_seam_is_noticed(
    architecture: str, fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = tiny_network(architecture)
    fault(monkeypatch)
    with pytest.raises(ModelError, match="choose another architecture"):
        load(network)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_other_sequences_change_is_noticed_below_the_formats_tolerance(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a state that is handed on to the next sequence in a batch: too little to show against a sequence alone."""
    plain = TorchModel.forward

    def leaking(self: TorchModel, batch: Any, cached: bool = True) -> Tensor:
        return plain(self, batch, cached) * (1.0 + 1e-7 * sum(sum(rows.ids) for rows in batch[1:]))

    network = tiny_network("llama", dtype=dtype)
    monkeypatch.setattr(TorchModel, "forward", leaking)
    with pytest.raises(ModelError, match="other sequences change its results"):
        wrap(network, None, "tiny", device=torch.device("cpu"), dtype=dtype, exact=False)  # type: ignore[arg-type]


def test_gap_is_relative_to_each_row() -> None:
    wanted = torch.tensor([[1000.0, 1.0], [0.01, 0.001], [2.0, 1.0]])
    got = wanted + torch.tensor([[0.0, 0.1], [0.0, 0.001], [0.0, 0.0]])
    assert gap(got, wanted, torch.float32) == pytest.approx(0.1)
    assert gap(got, wanted, torch.bfloat16) == pytest.approx(1e-4)
    assert not gap(wanted * float("nan"), wanted, torch.float32) <= 1.0
