"""Heads with random weights for tiny targets, with small draft vocabularies and sizes unlike the target's own."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from safetensors.torch import save
from torch import Tensor

from codespec.backends.heads.checkpoint import Head, LoadedHead
from codespec.backends.heads.config import WEIGHTS, HeadConfig, Kind
from codespec.backends.heads.host import Host
from codespec.backends.heads.networks import DFlash, Eagle3
from codespec.backends.torch.model import TorchModel

BLOCK = 5


def random_config(target: TorchModel, kind: Kind, *, draft_vocab: int = 0) -> HeadConfig:
    """Return a config with four heads of 32 and an MLP of 96, reading the target's first and last layer."""
    host = Host.of(target)
    return HeadConfig(
        kind=kind,
        hidden_size=host.size,
        target_size=host.size,
        layers=(0, host.layers - 1),
        heads=4,
        kv_heads=2,
        head_size=32,
        mlp_size=96,
        vocab_size=host.vocab_size,
        draft_vocab=draft_vocab or host.vocab_size // 2,
        draft_layers=1 if kind == "eagle3" else 2,
        block=BLOCK,
        target=host.fingerprint,
    )


@torch.no_grad()
def random_head(target: TorchModel, kind: Kind, seed: int = 0, *, draft_vocab: int = 0) -> LoadedHead:
    """Return a random head as if it had been loaded. Its weights are large, so that rows differ."""
    host, config = Host.of(target), random_config(target, kind, draft_vocab=draft_vocab)
    network: Head = (Eagle3 if kind == "eagle3" else DFlash)(config, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(host.vocab_size, generator=generator)[: config.draft_vocab].sort().values
    network.lm_head = torch.nn.Linear(config.hidden_size, config.draft_vocab, bias=False)
    network.lm_head.weight.copy_(host.output_rows(ids))
    for weight in network.parameters():
        if weight is not network.lm_head.weight:
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
    network.to(target.device, target.dtype).eval().requires_grad_(False)
    return LoadedHead(config, network, ids, host.embed)


def save_head(config: HeadConfig, network: Head, ids: Tensor, *, name: str) -> dict[str, bytes]:
    """Return the files of a head by name: weights in bfloat16, and a config.json that names the target `name`."""
    tensors = {
        key: value.detach().to("cpu", torch.bfloat16).contiguous()
        for key, value in network.state_dict().items()
        if not key.startswith("lm_head.")
    }
    known = torch.zeros(config.vocab_size, dtype=torch.bool)
    known[ids.cpu()] = True
    tensors |= {"d2t": to_d2t(ids.cpu().tolist()), "t2d": known}
    values = config.to_json()
    values["codespec"]["target"]["name"] = name
    return {
        WEIGHTS: save(tensors, metadata={"format": "pt"}),
        "config.json": (json.dumps(values, indent=1) + "\n").encode(),
    }


def to_d2t(ids: Sequence[int]) -> Tensor:
    """Return EAGLE-3's map of offsets for a draft vocabulary with these target ids, in order."""
    return torch.tensor(ids, dtype=torch.long) - torch.arange(len(ids))
