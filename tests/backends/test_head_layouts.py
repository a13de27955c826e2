"""Heads in the layout of their public repositories: random weights under public names equal a plain reference.

The reference is built from transformers' parts. Invalid heads are rejected with one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention, silu
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, Qwen3RotaryEmbedding, apply_rotary_pos_emb

from codespec.backends.heads.checkpoint import LoadedHead, load_head, target_parts
from codespec.backends.heads.config import HeadKind, spread_layers, usual_layers
from codespec.backends.heads.drafting import DFlashRunner, Eagle3Runner, make_runner
from codespec.backends.language_model import Rows
from codespec.backends.torch.model import TorchModel
from codespec.errors import ModelError
from tests.tiny_models import sample_ids, tiny_model
from tests.toy_tokenizers import toy_tokenizer

WIDE, HEADS, KV, SIZE, MLP, DRAFT, BLOCK, MASK, LENGTH = 128, 4, 2, 32, 96, 200, 6, 7, 20
SHAPE = {
    "hidden_size": WIDE, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": SIZE,
    "intermediate_size": MLP, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 512,
    "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip
Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def target() -> TorchModel:
    return tiny_model("llama", toy_tokenizer("gpt2"), exact=False, num_hidden_layers=9)


def layer(name: str, read: int, *, normed: bool) -> Weights:
    """Return one layer's random weights."""
    generator = torch.Generator().manual_seed(len(name) + read)

    def draw(*shape: int) -> Tensor:
        return 0.1 * torch.randn(*shape, generator=generator) + (len(shape) == 1)

    found = {
        f"{name}.self_attn.q_proj.weight": draw(HEADS * SIZE, read),
        f"{name}.self_attn.k_proj.weight": draw(KV * SIZE, read),
        f"{name}.self_attn.v_proj.weight": draw(KV * SIZE, read),
        f"{name}.self_attn.o_proj.weight": draw(WIDE, HEADS * SIZE),
        f"{name}.mlp.gate_proj.weight": draw(MLP, WIDE),
        f"{name}.mlp.up_proj.weight": draw(MLP, WIDE),
        f"{name}.mlp.down_proj.weight": draw(WIDE, MLP),
        f"{name}.input_layernorm.weight": draw(WIDE),
        f"{name}.post_attention_layernorm.weight": draw(WIDE),
    }
    extra = ("self_attn.q_norm", "self_attn.k_norm") if normed else ("hidden_norm",)
    return found | {f"{name}.{part}.weight": draw(SIZE if normed else WIDE) for part in extra}


def public_eagle3(folder: Path, count: int, **change: Any) -> Weights:
    """Write a folder like EAGLE-3's repositories and return its weights."""
    weights = layer("midlayer", 2 * WIDE, normed=False)
    weights |= {
        "fc.weight": 0.05 * torch.randn(WIDE, 3 * WIDE, generator=torch.Generator().manual_seed(1)),
        "norm.weight": torch.linspace(0.5, 1.5, WIDE),
        "lm_head.weight": torch.randn(DRAFT, WIDE, generator=torch.Generator().manual_seed(2)),
        "d2t": torch.arange(DRAFT) * 2 + 3,  # id i is the target's id 3 i + 3
        "t2d": torch.zeros(count, dtype=torch.bool),
    }
    config = {**SHAPE, "architectures": ["LlamaForCausalLMEagle3"], "vocab_size": count}
    write(folder, {**config, "draft_vocab_size": DRAFT, "num_hidden_layers": 1, **change}, weights)
    return weights


def public_dflash(folder: Path, count: int, **change: Any) -> Weights:
    """Write a folder like DFlash's repositories."""
    weights = {**layer("layers.0", WIDE, normed=True), **layer("layers.1", WIDE, normed=True)}
    weights |= {
        "fc.weight": 0.05 * torch.randn(WIDE, 2 * WIDE, generator=torch.Generator().manual_seed(1)),
        "hidden_norm.weight": torch.linspace(0.7, 1.3, WIDE),
        "norm.weight": torch.linspace(0.5, 1.5, WIDE),
    }
    config = {**SHAPE, "architectures": ["DFlashDraftModel"], "vocab_size": count, "block_size": BLOCK}
    reads = {"target_layer_ids": [1, 6], "mask_token_id": MASK}
    write(folder, {**config, "num_hidden_layers": 2, "dflash_config": reads, **change}, weights)
    return weights


PUBLIC: dict[HeadKind, Callable[..., Weights]] = {"eagle3": public_eagle3, "dflash": public_dflash}


def write(folder: Path, config: dict[str, Any], weights: Weights) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / "model.safetensors")


def read(target: TorchModel, head: LoadedHead) -> tuple[list[int], Tensor]:
    """Return the ids the target has read in slot 0, without the last, and its features for them."""
    ids = sample_ids(LENGTH)
    target.tap(head.config.layers)
    target.allocate(2, 128)
    target.admit(0, LENGTH)
    target.forward([Rows(0, 0, ids[:-1])])
    return ids, target.features


class Reference:
    """Plain arithmetic of public heads, with transformers' norm and rotation."""

    def __init__(self, weights: Weights, count: int) -> None:
        self.weights = weights
        rotary = Qwen3RotaryEmbedding(Qwen3Config(**SHAPE, vocab_size=8, rope_scaling=None))
        self.cos, self.sin = rotary(torch.zeros(1), torch.arange(count)[None])

    def norm(self, name: str, rows: Tensor) -> Tensor:
        norm = Qwen3RMSNorm(rows.shape[-1], eps=1e-5)
        norm.weight.data = self.weights[name + ".weight"]
        result: Tensor = norm(rows)
        return result

    def heads(self, name: str, rows: Tensor) -> Tensor:
        return linear(rows, self.weights[name + ".weight"]).unflatten(-1, (-1, SIZE)).transpose(0, 1)[None]

    def attend(self, name: str, rows: Tensor, context: Tensor | None, mask: Tensor | None) -> Tensor:
        """Rows attend to the context and themselves, at the positions after it."""
        both = rows if context is None else torch.cat([context, rows])
        q, k, v = (
            self.heads(f"{name}.self_attn.{part}_proj", x) for part, x in (("q", rows), ("k", both), ("v", both))
        )
        if f"{name}.self_attn.q_norm.weight" in self.weights:
            q, k = self.norm(f"{name}.self_attn.q_norm", q), self.norm(f"{name}.self_attn.k_norm", k)
        first, last = len(both) - len(rows), len(both)
        q, _ = apply_rotary_pos_emb(q, q, self.cos[:, first:last], self.sin[:, first:last])
        k, _ = apply_rotary_pos_emb(k, k, self.cos[:, :last], self.sin[:, :last])
        found = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return linear(found[0].transpose(0, 1).flatten(1), self.weights[f"{name}.self_attn.o_proj.weight"])

    def feed(self, name: str, rows: Tensor) -> Tensor:
        gate, up, down = (self.weights[f"{name}.mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
        normed = self.norm(f"{name}.post_attention_layernorm", rows)
        return rows + linear(silu(linear(normed, gate)) * linear(normed, up), down)

    def eagle3(self, embedded: Tensor, states: Tensor) -> Tensor:
        """Return the states after the layer."""
        count = len(states)
        inputs = [self.norm("midlayer.input_layernorm", embedded), self.norm("midlayer.hidden_norm", states)]
        mask = torch.ones(count, count, dtype=torch.bool).tril()
        rows = states + self.attend("midlayer", torch.cat(inputs, dim=-1), None, mask)
        return self.feed("midlayer", rows)

    def dflash(self, rows: Tensor, features: Tensor) -> Tensor:
        """Return the block's rows after both layers, normed."""
        context = self.norm("hidden_norm", linear(features.flatten(1), self.weights["fc.weight"]))
        for name in ("layers.0", "layers.1"):
            normed = self.norm(f"{name}.input_layernorm", rows)
            rows = self.feed(name, rows + self.attend(name, normed, context, None))
        return self.norm("norm", rows)


@torch.inference_mode()
def test_a_public_eagle3_head_computes_what_its_repository_says(target: TorchModel, tmp_path: Path) -> None:
    weights = public_eagle3(tmp_path, target.spec.vocab_size)
    head = load_head(tmp_path, target)
    assert head.config.layers == usual_layers(9) == (1, 3, 5)
    assert head.ids.tolist() == [3 * i + 3 for i in range(DRAFT)]
    ids, features = read(target, head)
    runner = make_runner(head, target)
    assert isinstance(runner, Eagle3Runner)
    reading = runner.open(0, ids)
    found = [runner.first([reading]), runner.go_on([reading], [11], 1), runner.go_on([reading], [12], 2)]
    reference = Reference(weights, LENGTH + 8)
    states = linear(features.flatten(1), weights["fc.weight"])
    told = [*ids[1:], 11, 12]
    for step, logits in enumerate(found):
        embedded = head.embed(torch.tensor(told[: len(states)]))
        new = reference.eagle3(embedded, states)
        wanted = linear(reference.norm("norm", new[-1:]), weights["lm_head.weight"])
        torch.testing.assert_close(logits, wanted, atol=2e-3, rtol=1e-3)
        states = torch.cat([states, new[-1:]])
        assert len(states) == LENGTH + step


@torch.inference_mode()
def test_a_public_dflash_head_computes_what_its_repository_says(target: TorchModel, tmp_path: Path) -> None:
    weights = public_dflash(tmp_path, target.spec.vocab_size)
    head = load_head(tmp_path, target)
    assert head.config.layers == (1, 6) and len(head.ids) == target.spec.vocab_size
    ids, features = read(target, head)
    runner = make_runner(head, target)
    assert isinstance(runner, DFlashRunner) and runner.width == BLOCK - 1
    (found,) = runner.first([runner.open(0, ids)])
    reference = Reference(weights, LENGTH + 8)
    rows = reference.dflash(head.embed(torch.tensor([ids[-1], *[MASK] * (BLOCK - 1)])), features)
    wanted = target_parts(target)[1](rows[1:])
    torch.testing.assert_close(found, wanted, atol=2e-3, rtol=1e-3)


def test_layers_that_the_files_do_not_name() -> None:
    assert usual_layers(32) == (1, 15, 28) and usual_layers(5) == (0, 2, 4)
    assert spread_layers(36, 5) == (1, 9, 17, 25, 33) and spread_layers(8, 1) == (4,)


@pytest.mark.parametrize(
    "kind,change,wanted",
    [
        ("eagle3", {"architectures": ["GPT2LMHeadModel"]}, "is not a head that codespec supports"),
        ("eagle3", {"vocab_size": 99}, "was trained for another target"),
        ("eagle3", {"hidden_size": 64}, "was trained for another target"),
        ("eagle3", {"intermediate_size": 97}, "do not have the sizes in its config.json"),
        ("eagle3", {"draft_vocab_size": DRAFT - 1}, "draft vocabulary .* is damaged"),
        ("eagle3", {"num_attention_heads": "four"}, "num_attention_heads = 'four'"),
        ("eagle3", {"attention_bias": True}, "have biases"),
        ("eagle3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, "x"]}}, "layers"),
        ("dflash", {"layer_types": ["sliding_attention", "full_attention"]}, "have windows"),
        ("dflash", {"num_hidden_layers": 3}, "lack .* tensors"),
        ("dflash", {"dflash_config": {"target_layer_ids": [1, 6]}}, "has no valid mask_token_id"),
        ("dflash", {"block_size": 100000}, "block_size = 100000"),
        ("dflash", {"rope_theta": -1}, "rope_theta"),
        ("eagle3", {"num_key_value_heads": 4, "num_attention_heads": 6}, r"dimensions \(6 .*\): download or export"),
        ("eagle3", {"head_dim": 15}, "has unsupported dimensions"),
    ],
)
def test_what_is_refused(
    kind: HeadKind, change: dict[str, Any], wanted: str, target: TorchModel, tmp_path: Path
) -> None:
    PUBLIC[kind](tmp_path, target.spec.vocab_size, **change)
    with pytest.raises(ModelError, match=wanted) as raised:
        load_head(tmp_path, target)
    assert "\n" not in str(raised.value)


def test_a_folder_without_a_head_or_with_damaged_files(target: TorchModel, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="There is no head in"):
        load_head(tmp_path / "nothing", target)
    public_eagle3(tmp_path, target.spec.vocab_size)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(ModelError, match=r"truncated|corrupt|shorter"):
        load_head(tmp_path, target)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickled weights are not read"):
        load_head(tmp_path, target)
    (tmp_path / "config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ModelError, match="can't be read as a JSON object"):
        load_head(tmp_path, target)
    assert load_file(_rewritten(tmp_path, whole))["d2t"].shape == (DRAFT,)


def _rewritten(folder: Path, data: bytes) -> Path:
    (folder / "model.safetensors").write_bytes(data)
    return folder / "model.safetensors"


def test_a_head_that_reads_a_layer_which_its_target_lacks(target: TorchModel, tmp_path: Path) -> None:
    reads = {"target_layer_ids": [1, 60], "mask_token_id": MASK}
    public_dflash(tmp_path, target.spec.vocab_size, dflash_config=reads)
    head = load_head(tmp_path, target)
    with pytest.raises(ModelError, match="reads layer 60, but the target has only 9 layers"):
        target.tap(head.config.layers)
