"""Every causal class of the installed transformers, at a tiny size: it loads, or one sentence says why not.

A class that loads has passed the check at start: its results through codespec's attention are those of its own, and
other sequences don't change them. Its memory can be planned. Each is tried with numbers, and with values of the kinds
that its own configuration has (lists, None, shared keys).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from codespec.backends.memory_plan import Need, step_claims
from codespec.backends.torch import attention
from codespec.backends.torch.loader import wrap
from codespec.backends.torch.model_check import quiet
from codespec.errors import ModelError
from codespec.startup.batch_invariance import find_variance
from codespec.store.model_folder import why_unsuitable

TINY: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "n_inner", "shared_intermediate_size"), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"), 256),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "q_lora_rank", "kv_lora_rank"), 32),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "num_key_value_heads", "linear_num_key_heads"), 2),
    **dict.fromkeys(("head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "rotary_dim", "state_size"), 16),
    **dict.fromkeys(("mamba_d_state", "mamba_d_head", "mamba_head_dim", "ssm_state_size", "linear_key_head_dim"), 16),
    **dict.fromkeys(("linear_value_head_dim", "index_head_dim", "sliding_window", "hidden_size_per_layer_input"), 16),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 128),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "mamba_n_groups", "bos_token_id"), 1),
    **dict.fromkeys(("num_nextn_predict_layers", "num_kv_shared_layers", "pad_token_id"), 0),
    "mamba_n_heads": 8,
    "mamba_num_heads": 8,
    "mamba_d_ssm": 128,
    "linear_num_value_heads": 4,
    "encoder_attention_heads": 4,
    "index_n_heads": 2,
    "index_topk": 8,
    "eos_token_id": 2,
    "initializer_range": 0.1,
    "use_mamba_kernels": False,
    "tie_word_embeddings": False,
}
MAX_PARAMETERS = 4_000_000
KINDS = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
MIN_BUILT = 140  # of 189; the others need more than sizes: pictures, sound, or an older form of configuration
KNOWN = (
    "llama", "qwen2", "qwen3", "gemma2", "phi3", "mixtral", "gpt_oss", "qwen3_moe", "deepseek_v3", "afmoe",
    "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "lfm2", "olmo_hybrid",
)  # fmt: skip
RAW = ("NoneType", "object has no attribute", "unsupported operand")
ITSELF = "can't run with the values of its configuration"  # quotes the class's own error
MIN_OWN = 20  # whose defaults are of other kinds than numbers
REFUSED = {
    "mamba": "recurrent",
    "jamba": "recurrent",
    "rwkv": "recurrent",
    "bamba": "recurrent",
    "deepseek_v32": "an indexer",
}


def sizes(known: Mapping[str, Any], own: bool) -> dict[str, Any]:
    """Return tiny sizes for a configuration's defaults, `own`: of the same kinds as the defaults."""
    values = {name: value for name, value in TINY.items() if name in known}
    layers = 2
    if isinstance(listed := known.get("layer_types"), list) and listed:
        kinds = list(dict.fromkeys(listed))
        shares = own and "num_kv_shared_layers" in known
        values["layer_types"] = kinds = kinds * (2 if len(kinds) == 1 or shares else 1)
        layers = len(kinds)
        values |= {name: layers for name in ("num_hidden_layers", "n_layer", "num_layers") if name in values}
        if shares:
            values["num_kv_shared_layers"] = layers // 2
    if "kv_lora_rank" in known:
        values["num_key_value_heads"] = 4
    if own:
        values = {name: value for name, value in values.items() if known[name] is not None}
        values |= {
            name: [value] * layers
            for name, value in values.items()
            if isinstance(known[name], list) and not isinstance(value, list)
        }
    return values


def build(kind: str, own: bool) -> Any:
    """Return a tiny random network of a model type, or None if sizes alone don't make one."""
    named: Any = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]
    cls = getattr(transformers, named[0] if isinstance(named, tuple) else named)
    try:
        known = transformers.CONFIG_MAPPING[kind]().to_dict()
        values = sizes(known, own)
        if own and values == sizes(known, False):
            return None
        with torch.device("meta"):
            network = cls._from_config(
                transformers.CONFIG_MAPPING[kind](**values), attn_implementation="eager", dtype=torch.float32
            )
        if sum(weight.numel() for weight in network.parameters()) > MAX_PARAMETERS:
            return None
        torch.manual_seed(0)
        return cls._from_config(
            transformers.CONFIG_MAPPING[kind](**values), attn_implementation=attention.NAME, dtype=torch.float32
        )
    except Exception:  # whatever a configuration without its own sizes raises
        return None


def outcome(kind: str, own: bool = False) -> str:
    """Return "" if the class loads, the sentence of its refusal, or "not built"."""
    attention.register()
    with quiet():
        network = build(kind, own)
        if network is None:
            return "not built"
        try:
            model = wrap(network, None, kind, device=torch.device("cpu"), dtype=torch.float32, exact=True)  # type: ignore[arg-type]
            assert all(claim.nbytes >= 0 for claim in step_claims(Need(model, 2, 64, 16, 4), 0))
        except ModelError as error:
            fault = why_unsuitable(network.config.to_dict())  # as the loader, which reads the configuration first
            return fault.sentence if fault is not None else str(error)
    return ""


@pytest.mark.parametrize("kind", ["gemma3n_text", "gemma4_text"])
def test_lists_of_sizes_and_shared_keys(kind: str) -> None:
    assert outcome(kind, own=True) == ""
    with quiet():
        network = build(kind, own=True)
        model = wrap(network, None, kind, device=torch.device("cpu"), dtype=torch.float32, exact=True)  # type: ignore[arg-type]
        model.allocate(3, 256)
        assert network.config.num_kv_shared_layers and find_variance(model) == ""


def test_a_configuration_that_the_class_itself_cannot_run() -> None:
    """Here `num_experts_per_tok` is None: no fault of codespec's attention, and the sentence doesn't name that."""
    text = outcome("deepseek_v2", own=True)
    assert text.startswith(f"DeepseekV2ForCausalLM {ITSELF} (") and "config.json" in text


@pytest.mark.full
def test_values_of_each_class_own_kinds() -> None:
    found = {kind: outcome(kind, own=True) for kind in KINDS}
    built = {kind: text for kind, text in found.items() if text != "not built"}
    print(len(built), {kind: text for kind, text in built.items() if text})
    assert len(built) >= MIN_OWN
    assert not [text for text in built.values() if "\n" in text or ". " in text], "one sentence"
    raw = [text for text in built.values() if any(word in text for word in RAW)]
    assert [text for text in raw if ITSELF not in text] == []


@pytest.mark.full
def test_every_class_loads_or_says_why_not() -> None:
    found = {kind: outcome(kind) for kind in KINDS}
    built = {kind: message for kind, message in found.items() if message != "not built"}
    assert len(built) >= MIN_BUILT
    assert not [message for message in built.values() if "\n" in message or ". " in message], "one sentence"
    assert {kind for kind in KNOWN if found[kind]} == set()
    assert all(words in found[kind] for kind, words in REFUSED.items()), {kind: found[kind] for kind in REFUSED}
    assert not [message for message in built.values() if any(word in message for word in RAW)]
