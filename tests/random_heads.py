"""Heads with random weights for tiny targets, with small draft vocabularies and sizes unlike the target's own."""

from __future__ import annotations

import json

import torch
from safetensors.torch import save
from torch import nn

from codespec.backends.heads.checkpoint import Head, LoadedHead, target_parts
from codespec.backends.heads.config import HeadConfig, HeadKind
from codespec.backends.heads.networks import DFlash, Eagle3
from codespec.backends.torch.model import TorchModel

BLOCK = 5


@torch.no_grad()
def random_head(target: TorchModel, kind: HeadKind, seed: int = 0, *, draft_vocab: int = 0) -> LoadedHead:
    """Return a random head as if it had been loaded: four heads of 32 and an MLP of 96, reading the target's first and
    last layer. Its weights are large, so that rows differ.
    """
    size, vocab, (embed, output) = target.spec.hidden_size, target.spec.vocab_size, target_parts(target)
    config = HeadConfig(
        kind=kind,
        hidden_size=size,
        target_size=size,
        layers=(0, target.spec.layers - 1),
        heads=4,
        kv_heads=2,
        head_size=32,
        mlp_size=96,
        vocab_size=vocab,
        draft_vocab=draft_vocab or vocab // 2,
        draft_layers=1 if kind == "eagle3" else 2,
        block=BLOCK,
    )
    network: Head = (Eagle3 if kind == "eagle3" else DFlash)(config)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(vocab, generator=generator)[: config.draft_vocab].sort().values
    rows = output(torch.eye(size, device=target.device, dtype=target.dtype)).T.cpu().float()
    network.lm_head = nn.Linear(size, config.draft_vocab, bias=False)
    network.lm_head.weight.copy_(rows[ids])
    for name, weight in network.named_parameters():
        if name == "lm_head.weight":
            continue
        if weight.ndim == 2:
            small = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(weight, std=0.01 if small else 0.02, generator=generator)
        weight += 0.1 * torch.randn(weight.shape, generator=generator)
    network.to(target.device, target.dtype).eval().requires_grad_(False)
    return LoadedHead(config, network, ids, embed)


def save_eagle3(head: LoadedHead) -> dict[str, bytes]:
    """Return the files of an EAGLE-3 head by name, in its repository's layout."""
    config, known = head.config, torch.zeros(head.config.vocab_size, dtype=torch.bool)
    known[head.ids.cpu()] = True
    weights = {key: value.detach().cpu().contiguous() for key, value in head.network.state_dict().items()}
    values = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "intermediate_size": config.mlp_size,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(config.layers)},
    }
    return {
        "model.safetensors": save({**weights, "d2t": head.ids.cpu() - torch.arange(len(head.ids)), "t2d": known}),
        "config.json": json.dumps(values).encode(),
    }
