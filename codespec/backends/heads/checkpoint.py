"""Load a head's weights, in the layout of the EAGLE-3 and DFlash repositories, for a loaded target.

A head uses its target's token embeddings if both have the same width, and its target's output layer if the head's files
contain neither an output layer nor a vocabulary of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from codespec.backends.heads.config import AGAIN, HeadConfig, read_head_config
from codespec.backends.heads.networks import DFlash, Eagle3
from codespec.backends.torch.model import TorchModel
from codespec.errors import ModelError
from codespec.store.model_folder import read_header

Head = Eagle3 | DFlash


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A loaded head. `ids` [draft vocabulary] holds the target ids of the tokens that the head can predict."""

    config: HeadConfig
    network: Head
    ids: Tensor
    embed: nn.Module


def load_head(folder: Path, target: TorchModel) -> LoadedHead:
    """Load a head from a folder for a loaded target, in the target's dtype and on the target's device.

    Raise ModelError if there is no head in the folder, if the head was trained for a target with other sizes, or if the
    head's weights are damaged or don't match its config.json.
    """
    embed, output = target_parts(target)
    config, tensors = read_head_config(folder, target.spec.layers), _read(folder)
    if (config.target_size, config.vocab_size) != (target.spec.hidden_size, target.spec.vocab_size):
        made_for = f"{config.vocab_size} tokens, width {config.target_size}"
        what = f"The head {folder} was trained for another target ({made_for})"
        raise ModelError(what, "set `head` to a head that was trained for this target")
    ids = _ids(config, tensors, folder)
    own = _own_names(config, tensors)
    if config.hidden_size != target.spec.hidden_size:
        embed = _own_embedding(config, tensors, folder).to(target.device, target.dtype)
    network: Head = (Eagle3 if config.kind == "eagle3" else DFlash)(config)
    if isinstance(network, DFlash) and "mask" not in own:
        own["mask"] = _mask(config, embed, folder, target.device)
    shared = "lm_head.weight" not in own and "d2t" not in tensors and config.draft_vocab == config.vocab_size
    if shared:
        network.lm_head = nn.Identity()  # until the weights are moved
    _fill(network, own, folder)
    network.to(target.device, target.dtype).eval().requires_grad_(False)
    if shared:
        network.lm_head = output
    return LoadedHead(config, network, ids.to(target.device), embed)


def target_parts(target: TorchModel) -> tuple[nn.Module, nn.Module]:
    """Return a target's token embedding and output layer. Raise ModelError if either layer is missing."""
    network: Any = target.network
    lean = hasattr(network, "blocks")
    embed = network.embed if lean else network.get_input_embeddings()
    output = network.head if lean else network.get_output_embeddings()
    if not isinstance(embed, nn.Module) or not isinstance(output, nn.Module):
        what = f"A head can't read the token embeddings of {target.spec.architecture}"
        raise ModelError(what, "remove the setting `head`, or choose another target")
    return embed, output


def _read(folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"The head {folder} has no *.safetensors weights",
            "convert the weights to safetensors (pickled weights are not read)",
        )
    tensors: dict[str, Tensor] = {}
    for file in files:
        read_header(file)  # first: it opens regular files only
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file} is truncated or corrupt ({error})", AGAIN) from error
    return {name.removeprefix("model."): value for name, value in tensors.items()}


def _own_names(config: HeadConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the head's weights by module name. Public files use two different names for the layer of EAGLE-3."""
    own = {name: value for name, value in tensors.items() if name not in ("d2t", "t2d", "embed_tokens.weight")}
    if config.kind == "dflash":
        return own
    return {"midlayer." + name[9:] if name.startswith("layers.0.") else name: value for name, value in own.items()}


def _ids(config: HeadConfig, tensors: Mapping[str, Tensor], folder: Path) -> Tensor:
    """Return the target ids of the draft vocabulary. In EAGLE-3 files, `d2t` holds target ids minus draft ids."""
    ids, d2t = torch.arange(config.draft_vocab), tensors.get("d2t")
    is_sound = d2t is None or (d2t.shape == ids.shape and not d2t.is_floating_point())
    if d2t is not None and is_sound:
        ids = ids + d2t.long()
    if not is_sound or not bool(((ids >= 0) & (ids < config.vocab_size)).all()):
        raise ModelError(f"The draft vocabulary of the head {folder} is damaged (tensor d2t)", AGAIN)
    return ids


def _own_embedding(config: HeadConfig, tensors: Mapping[str, Tensor], folder: Path) -> nn.Module:
    own = tensors.get("embed_tokens.weight")
    if own is None or own.shape != (config.vocab_size, config.hidden_size):
        what = f"The head {folder} has width {config.hidden_size} and no token embeddings, but its target has "
        raise ModelError(what + f"width {config.target_size}", "set `head` to a head that was trained for this target")
    embedding: nn.Module = nn.Embedding.from_pretrained(own)
    return embedding


def _mask(config: HeadConfig, embed: nn.Module, folder: Path, device: torch.device) -> Tensor:
    if config.mask_token is None or config.mask_token >= config.vocab_size:
        raise ModelError(f"The config.json of the head {folder} has no valid mask_token_id", AGAIN)
    with torch.no_grad():
        vector: Tensor = embed(torch.tensor([config.mask_token], device=device))[0].cpu()
    return vector


def _fill(network: Head, tensors: dict[str, Tensor], folder: Path) -> None:
    """Load the network's weights by name. Raise ModelError if tensors are missing or have wrong shapes."""
    wanted = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    if missing := sorted(wanted.keys() - tensors.keys()):
        what = f"The weights of the head {folder} lack {len(missing)} tensors (first: {missing[0]})"
        raise ModelError(what, AGAIN)
    for name, shape in wanted.items():
        if tuple(tensors[name].shape) != shape:
            what = f"The weights of the head {folder} do not have the sizes in its config.json (first: {name})"
            raise ModelError(what, AGAIN)
    network.load_state_dict({name: tensors[name] for name in wanted}, strict=False, assign=True)
