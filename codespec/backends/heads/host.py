"""Give a head access to its target's token embedding and output head, and check that it was trained for this target.

Supports lean networks and transformers' own. A fingerprint identifies the target that a head was trained for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from codespec.backends.heads.config import HeadConfig
from codespec.backends.torch.linear import TiledLinear
from codespec.backends.torch.model import TorchModel
from codespec.errors import ModelError

SAMPLED_ROWS = 64  # token embeddings in the fingerprint


@dataclass(frozen=True, slots=True)
class Host:
    """The parts of a target that its head uses.

    embed   token embedding: ids [N] -> [N, size]
    output  the output head
    norm    the weight [size] of the norm before the output head; None if it has no norm of the usual name
    """

    embed: nn.Module
    output: nn.Module
    norm: Tensor | None
    layers: int
    size: int
    vocab_size: int
    fingerprint: Mapping[str, Any]

    @classmethod
    def of(cls, model: TorchModel) -> Host:
        """Return the parts of a loaded target. Raise ModelError if they can't be found."""
        network: Any = model.network
        lean = hasattr(network, "blocks")
        embed = getattr(network, "embed", None) if lean else network.get_input_embeddings()
        output = network.head if lean else network.get_output_embeddings()
        norm = getattr(network if lean else network.get_decoder(), "norm", None)
        if not isinstance(embed, nn.Module) or not isinstance(output, nn.Module):
            raise ModelError(
                f"A head can't read the token vectors of {model.spec.architecture}",
                "leave the setting head out, or choose another target",
            )
        layers, size, known = model.spec.layers, model.spec.hidden_size, model.spec.vocab_size
        fingerprint = {"layers": layers, "hidden_size": size, "vocab_size": known, "sha256": _digest(embed, model)}
        weight = getattr(norm, "weight", None)
        return cls(embed, output, weight if isinstance(weight, Tensor) else None, layers, size, known, fingerprint)

    def output_rows(self, ids: Tensor) -> Tensor:
        """Return rows [ids, size] of the output head's weight, unpacked if necessary."""
        layer = self.output
        weight: Any = layer.weight if not isinstance(layer, TiledLinear) or layer.packed is None else None
        if weight is None:
            assert isinstance(layer, TiledLinear) and layer.packed is not None
            weight = layer.packed.to_dense()[:, : layer.in_features]
        rows: Tensor = weight.detach()[ids.to(weight.device)]
        return rows

    def demand(self, config: HeadConfig, name: str) -> None:
        """Raise ModelError unless the head is for this target. Without a target hash only the sizes are compared."""
        sizes = (config.target_size, config.vocab_size)
        named = config.target.get("sha256")
        if sizes != (self.size, self.vocab_size) or (named and named != self.fingerprint["sha256"]):
            raise ModelError(
                f"The head {name} was trained for another target ({config.made_for})",
                "give a head for this target",
            )


def _digest(embed: nn.Module, model: TorchModel) -> str:
    """Return a hash of sampled token embeddings, in bfloat16, and of the tokenizer. It is the same for every dtype that
    the model is loaded in.
    """
    step = max(1, model.spec.vocab_size // SAMPLED_ROWS)
    ids = torch.arange(0, model.spec.vocab_size, step, device=model.device)[:SAMPLED_ROWS]
    with torch.inference_mode():
        rows = embed(ids).to("cpu", torch.bfloat16).contiguous().view(torch.int16)
    digest = hashlib.sha256(rows.numpy().tobytes())
    digest.update(model.tokenizer.fingerprint.encode())
    return digest.hexdigest()


def draft_ids(d2t: Tensor) -> Tensor:
    """Return target ids [draft vocabulary] from EAGLE-3's map of offsets (target id minus draft id)."""
    return torch.arange(len(d2t), device=d2t.device) + d2t.long()
