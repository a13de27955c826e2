"""Tiny random models of many architectures, created in memory.

Two layers, 128 wide, untied embeddings. Each architecture's own features are small enough to take effect within a
hundred tokens (windows of 16, soft caps, sinks, a rotary that changes at 64). The output head is scaled so that the
median gap between a row's first and second choice is GAP, so that near-ties do not hide differences and decoding does
not repeat one token.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.initialization import no_init_weights

from codespec.backends.torch.attention import register
from codespec.backends.torch.loader import wrap
from codespec.backends.torch.model import Steps, TorchModel
from codespec.text.tokenizer import TextTokenizer

GAP = 0.4
LENGTH = 1024  # positions
WINDOW = 16
LONGROPE_LIMIT = 64
MIXTURES = ("gpt_oss", "mixtral", "qwen3_moe", "deepseek_v3", "glm4_moe", "granitemoe")  # of experts
SPREAD = 4.0  # factor on the initial weights, so that rows differ
_PROBE = 48
KEPT = 40  # sets of weights, a few MB each
_WEIGHTS: dict[object, dict[str, Tensor]] = {}


def _shape(**more: Any) -> dict[str, Any]:
    shape = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4)
    return {**shape, "max_position_embeddings": LENGTH, **more}


def _grouped(**more: Any) -> dict[str, Any]:
    return _shape(num_key_value_heads=2, **more)


def _longrope() -> dict[str, Any]:
    """One set of frequencies up to 64 positions, another for requests that may grow longer."""
    factors = dict(long_factor=[2.0 + i / 4 for i in range(16)], short_factor=[1.0 + i / 32 for i in range(16)])
    return dict(rope_type="longrope", rope_theta=10000.0, original_max_position_embeddings=LONGROPE_LIMIT, **factors)


def _yarn() -> dict[str, Any]:
    original = dict(original_max_position_embeddings=LONGROPE_LIMIT)
    return dict(rope_type="yarn", rope_theta=10000.0, factor=LENGTH / LONGROPE_LIMIT, **original)


def _experts() -> dict[str, int]:
    return dict(num_local_experts=4, num_experts_per_tok=2)


def _chosen() -> dict[str, int]:
    return dict(num_experts_per_tok=2, moe_intermediate_size=96)


_SMALL_GPT = dict(n_embd=128, n_layer=2, n_head=4)
ARCHITECTURES: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
    "llama": lambda: ("Llama", _grouped()),
    "qwen2": lambda: ("Qwen2", _grouped(use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1)),
    "qwen3": lambda: ("Qwen3", _grouped(head_dim=32)),
    "mistral": lambda: ("Mistral", _grouped(sliding_window=WINDOW)),
    "gemma2": lambda: ("Gemma2", _grouped(head_dim=32, sliding_window=WINDOW, attn_logit_softcapping=5.0)),
    "gemma3": lambda: (
        "Gemma3",
        _grouped(head_dim=32, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"]),
    ),
    "gpt_neox": lambda: ("GPTNeoX", _shape()),
    "phi3": lambda: (
        "Phi3",
        _grouped(original_max_position_embeddings=LONGROPE_LIMIT, rope_parameters=_longrope()),
    ),
    "starcoder2": lambda: ("Starcoder2", _grouped(sliding_window=WINDOW)),
    "gpt2": lambda: ("GPT2", {**_SMALL_GPT, "n_positions": LENGTH}),
    "cohere": lambda: ("Cohere", _grouped()),
    "opt": lambda: ("OPT", {**_shape(), "ffn_dim": 256, "word_embed_proj_dim": 128}),
    "gpt_oss": lambda: (
        "GptOss",
        _grouped(head_dim=32, sliding_window=WINDOW, rope_parameters=_yarn(), **_experts()),
    ),
    "mixtral": lambda: ("Mixtral", _grouped(**_experts())),
    "qwen3_moe": lambda: ("Qwen3Moe", _grouped(head_dim=32, num_experts=4, **_chosen())),
    "deepseek_v3": lambda: (
        "DeepseekV3",
        _shape(
            num_key_value_heads=4,
            q_lora_rank=32,
            kv_lora_rank=32,
            qk_rope_head_dim=16,
            qk_nope_head_dim=16,
            v_head_dim=32,
            n_routed_experts=4,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            **_chosen(),
        ),
    ),
    "glm4_moe": lambda: (
        "Glm4Moe",
        _grouped(head_dim=32, n_routed_experts=4, n_group=1, topk_group=1, first_k_dense_replace=1, **_chosen()),
    ),
    "granitemoe": lambda: ("GraniteMoe", _grouped(**_experts())),
    "gptj": lambda: ("GPTJ", {**_SMALL_GPT, "rotary_dim": 16, "n_positions": LENGTH}),
    "bloom": lambda: ("Bloom", dict(hidden_size=128, n_layer=2, n_head=4)),
}
_LAYERS = ["linear_attention", "full_attention"]
_DELTA = dict(
    head_dim=32, layer_types=_LAYERS, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
    linear_value_head_dim=24,
)  # fmt: skip
_MAMBA2 = dict(mamba_n_heads=8, mamba_n_groups=2, mamba_d_state=16, mamba_d_head=32)
_DELTA_EXPERTS = dict(num_experts=4, shared_expert_intermediate_size=96, **_chosen())
RECURRENT: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
    "qwen3_next": lambda: ("Qwen3Next", _grouped(**_DELTA, **_DELTA_EXPERTS)),
    "qwen3_5": lambda: ("Qwen3_5", _grouped(**_DELTA)),
    "qwen3_5_moe": lambda: ("Qwen3_5Moe", _grouped(**_DELTA, **_DELTA_EXPERTS)),
    "olmo_hybrid": lambda: (
        "OlmoHybrid",
        _grouped(**{name: value for name, value in _DELTA.items() if name != "head_dim"}),
    ),
    "lfm2": lambda: ("Lfm2", _grouped(layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False)),
}
REFUSED: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
    "granitemoehybrid": lambda: (
        "GraniteMoeHybrid",
        _grouped(layer_types=_LAYERS, shared_intermediate_size=96, **_MAMBA2, **_experts()),
    ),
    "bamba": lambda: ("Bamba", _grouped(attn_layer_indices=[1], **_MAMBA2)),
    "falcon_h1": lambda: ("FalconH1", _grouped(mamba_d_ssm=256, **_MAMBA2)),
    "mamba2": lambda: (
        "Mamba2",
        dict(hidden_size=128, num_hidden_layers=2, num_heads=8, head_dim=32, state_size=16, n_groups=2),
    ),
}
_KNOWN = {**ARCHITECTURES, **RECURRENT, **REFUSED}
_HEADS = {"GPT2": "LMHeadModel"}
_CONFIGS = {"Gemma3": "TextConfig", "Qwen3_5": "TextConfig", "Qwen3_5Moe": "TextConfig"}


def tiny_config(architecture: str, *, vocab_size: int = 512, **change: Any) -> Any:
    """Return the configuration of one of ARCHITECTURES, RECURRENT or REFUSED, without end-of-text token."""
    name, values = _KNOWN[architecture]()
    kind = getattr(transformers, name + _CONFIGS.get(name, "Config"))
    tokens = dict(bos_token_id=None, eos_token_id=None, pad_token_id=0)
    return kind(**{**values, **tokens, "vocab_size": vocab_size, "tie_word_embeddings": False, **change})


def tiny_network(
    architecture: str,
    *,
    vocab_size: int = 512,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    attention: str = "codespec",
    **change: Any,
) -> Any:
    """Return a random transformers model; a seed gives the same weights for every dtype and attention."""
    register()
    name = _KNOWN[architecture]()[0]
    kind = getattr(transformers, name + _HEADS.get(name, "ForCausalLM"))
    key = architecture, vocab_size, seed, repr(sorted(change.items()))
    torch.manual_seed(seed)
    with _quiet():
        config = tiny_config(architecture, vocab_size=vocab_size, **change)
        # The configuration object stores the attention's name, so each network gets its own copy.
        if key not in _WEIGHTS:
            plain = kind._from_config(copy.deepcopy(config), attn_implementation="eager", dtype=torch.float32).eval()
            scale_weights(plain)
            _WEIGHTS[key] = plain.state_dict()
            if len(_WEIGHTS) > KEPT:
                del _WEIGHTS[next(iter(_WEIGHTS))]
        with no_init_weights():
            network = kind._from_config(copy.deepcopy(config), attn_implementation=attention, dtype=dtype).eval()
    network.tie_weights()
    network.load_state_dict(_WEIGHTS[key])
    torch.manual_seed(seed)  # the same numbers follow, whether the weights were known or not
    return network


def tiny_model(
    architecture: str,
    tokenizer: TextTokenizer | None = None,
    *,
    vocab_size: int | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    exact: bool = True,
    steps: Steps | None = None,
    **change: Any,
) -> TorchModel:
    """Return a tiny network as a TorchModel, with `vocab_size` ids or those of the tokenizer."""
    size = vocab_size or (tokenizer.vocab_size if tokenizer else 512)
    network = tiny_network(architecture, vocab_size=size, seed=seed, dtype=dtype, **change)
    return wrap(network, tokenizer, architecture, device=torch.device("cpu"), dtype=dtype, exact=exact, steps=steps)


@torch.no_grad()
def scale_weights(network: Any) -> None:
    """Spread a plain network's weights and scale its head to GAP, in place.

    Biases, norms and sinks start as constants; they get noise, so that a dropped one is noticed.
    """
    for weight in network.parameters():
        if weight.dim() > 1:
            weight.mul_(SPREAD)
        else:
            weight.add_(0.1 * torch.randn_like(weight))
    head: nn.Linear = network.get_output_embeddings()
    for _ in range(3):  # soft caps make the scale nonlinear
        head.weight.mul_(GAP / median_gap(network))


@torch.no_grad()
def median_gap(network: Any) -> float:
    """Return the median gap between first and second choice over a probe text."""
    ids = [(31 * place + 7) % min(network.config.vocab_size, 900) for place in range(_PROBE)]
    best = network(torch.tensor([ids])).logits[0].float().topk(2, dim=1).values
    return float((best[:, 0] - best[:, 1]).median())


def sample_ids(count: int, seed: int = 0, vocab_size: int = 512) -> list[int]:
    """Return random ids."""
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(vocab_size, (count,), generator=generator).tolist()
    return ids


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress transformers' warnings about tiny configurations."""
    level = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.utils.logging.set_verbosity(level)
