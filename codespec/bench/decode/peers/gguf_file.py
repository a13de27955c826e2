"""Writes a transformers network of Llama's kind as a GGUF file for llama.cpp. Knows both layouts; runs nothing.

llama.cpp rotates neighbouring features of a head where transformers rotates its two halves, so the rows of query and
key weights are reordered.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from codespec.text.tokenizer import TextTokenizer

FORMATS = ("BF16", "Q8_0")
NORMAL, CONTROL, UNUSED = 1, 3, 5  # kinds of tokens
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def why_not(network: Any, tokenizer: TextTokenizer) -> str:
    """Why a network can't be written as GGUF; "" if it can."""
    biased = any(name.endswith(".bias") for name, _ in network.named_parameters())
    if type(network).__name__ != "LlamaForCausalLM" or biased:
        return f"a {type(network).__name__} is not written as GGUF here, only a Llama without biases"
    if network.config.rope_parameters["rope_type"] != "default":
        return "scaled rotations are not written as GGUF here"
    if tokenizer.kind != "byte-level":
        return "only byte-level vocabularies are written as GGUF here"
    return ""


def write_gguf(file: Path, network: Any, tokenizer: TextTokenizer, merges: Sequence[str], kind: str) -> None:
    """Writes a float32 network and its vocabulary: matrices in the format `kind` (of FORMATS), norms as they are."""
    gguf: Any = importlib.import_module("gguf")  # optional, and without types
    config, form = network.config, gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(network.model.norm.variance_epsilon)
    writer.add_vocab_size(config.vocab_size)
    _add_vocabulary(writer, tokenizer, merges, config.vocab_size)
    for name, weight in tensors(network):
        values = weight.detach().float().numpy()
        if values.ndim > 1:
            writer.add_tensor(name, gguf.quantize(values, form), raw_dtype=form)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(network: Any) -> Iterator[tuple[str, Tensor]]:
    """Every weight under llama.cpp's name. A head tied to the embedding is left out, as llama.cpp expects."""
    config = network.config
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, weight in network.named_parameters():
        part = name.removesuffix(".weight")
        if part in WHOLE:
            yield f"{WHOLE[part]}.weight", weight
            continue
        layer, _, inside = part.removeprefix("model.layers.").partition(".")
        named = LAYER[inside]
        yield f"blk.{layer}.{named}.weight", neighbours(weight, heads[named]) if named in heads else weight


def neighbours(weight: Tensor, heads: int) -> Tensor:
    """Rows [heads, 2, half] reordered to [heads, half, 2]: each feature beside the one that it is rotated with."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _add_vocabulary(writer: Any, tokenizer: TextTokenizer, merges: Sequence[str], size: int) -> None:
    names = {number: name for name, number in tokenizer.vocab.items()}
    tokens = [names.get(number, f"[unused {number}]") for number in range(size)]
    kinds = [
        CONTROL if number in tokenizer.special_ids else NORMAL if number in names else UNUSED for number in range(size)
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(np.array(kinds, dtype=np.int32).tolist())
    writer.add_token_merges(list(merges))
    writer.add_add_bos_token(False)
    if tokenizer.model_eos_ids:
        writer.add_eos_token_id(min(tokenizer.model_eos_ids))
