"""Read a head's folder: config.json and model.safetensors, in the layout of the EAGLE-3 and DFlash
repositories.

A head trained by codespec omits the tensors that it shares with its target: token embeddings and output head rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from codespec.backends.heads.config import HeadConfig, read_head_config
from codespec.backends.heads.host import Host, draft_ids
from codespec.backends.heads.networks import DFlash, Eagle3
from codespec.errors import ModelError
from codespec.store.weights import read_header

Head = Eagle3 | DFlash


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A head with its target's parts.

    ids    [draft vocabulary]: target ids of the tokens that the head can predict
    embed  token embedding
    """

    config: HeadConfig
    network: Head
    ids: Tensor
    embed: nn.Module


def load_head(folder: Path, host: Host, *, dtype: torch.dtype, device: torch.device) -> LoadedHead:
    """Load the head in a folder for a loaded target.

    Raise ModelError if there is no head, if it belongs to another target, or if its weights are damaged or don't match
    its config.json.
    """
    config, tensors = read_head_config(folder, host.layers), _read(folder)
    host.demand(config, str(folder))
    ids = _ids(config, tensors, folder)
    network: Head = (Eagle3 if config.kind == "eagle3" else DFlash)(config)
    own = _own_names(config, tensors)
    embed = _embedding(config, tensors, host, folder)
    if embed is not host.embed:
        embed.to(device, dtype)
    if isinstance(network, DFlash) and "mask" not in own:
        own["mask"] = _mask(config, embed, folder, device)
    whole = "lm_head.weight" not in own and "d2t" not in tensors and config.draft_vocab == host.vocab_size
    if "lm_head.weight" not in own and not whole:
        own["lm_head.weight"] = host.output_rows(ids)
    if whole:
        network.lm_head = nn.Identity()  # until the weights are moved
    _fill(network, own, folder)
    network.to(device, dtype).eval().requires_grad_(False)
    if whole:
        network.lm_head = host.output
    return LoadedHead(config, network, ids.to(device), embed)


def _read(folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"The head {folder} has no *.safetensors weights", "convert it (pickled weights are not read)")
    tensors: dict[str, Tensor] = {}
    for file in files:
        read_header(file)  # first: it opens regular files only
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file} is truncated or corrupt ({error})", "fetch or export the head again") from error
    return {name.removeprefix("model."): value for name, value in tensors.items()}


def _own_names(config: HeadConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the head's weights by module name. EAGLE-3's only layer has two names in public files."""
    shared = ("d2t", "t2d", "embed_tokens.weight")
    own = {name: value for name, value in tensors.items() if name not in shared}
    if config.kind == "dflash":
        return own
    return {"midlayer." + name[9:] if name.startswith("layers.0.") else name: value for name, value in own.items()}


def _ids(config: HeadConfig, tensors: Mapping[str, Tensor], folder: Path) -> Tensor:
    """Return the target ids of the draft vocabulary. Raise ModelError if the map is damaged."""
    d2t = tensors.get("d2t")
    if d2t is None:
        ids = torch.arange(config.draft_vocab)
    else:
        ids = draft_ids(d2t) if d2t.ndim == 1 and not d2t.is_floating_point() else torch.empty(0)
    if len(ids) != config.draft_vocab or not bool(((ids >= 0) & (ids < config.vocab_size)).all()):
        raise ModelError(f"The draft vocabulary of the head {folder} is damaged (d2t)", "fetch or export it again")
    return ids


def _embedding(config: HeadConfig, tensors: Mapping[str, Tensor], host: Host, folder: Path) -> nn.Module:
    """Return the target's token embedding, or the head's own if its width differs."""
    if config.hidden_size == host.size:
        return host.embed
    own = tensors.get("embed_tokens.weight")
    if own is None or own.shape != (config.vocab_size, config.hidden_size):
        raise ModelError(
            f"The head {folder} is {config.hidden_size} wide without token vectors, and its target is {host.size} wide",
            "give a head that was trained for this target",
        )
    made: nn.Module = nn.Embedding.from_pretrained(own)
    return made


def _mask(config: HeadConfig, embed: nn.Module, folder: Path, device: torch.device) -> Tensor:
    if config.mask_token is None or config.mask_token >= config.vocab_size:
        raise ModelError(f"The head {folder} names no mask token (mask_token_id)", "fetch it again")
    with torch.no_grad():
        vector: Tensor = embed(torch.tensor([config.mask_token], device=device))[0].cpu()
    return vector


def _fill(network: Head, tensors: dict[str, Tensor], folder: Path) -> None:
    """Load weights by name. Raise ModelError if tensors are missing or have other shapes."""
    wanted = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    missing = sorted(wanted.keys() - tensors.keys())
    if missing:
        raise ModelError(
            f"The weights of the head {folder} lack {len(missing)} tensors (first: {missing[0]})",
            "fetch or export it again",
        )
    for name, shape in wanted.items():
        if tuple(tensors[name].shape) != shape:
            raise ModelError(
                f"The weights of the head {folder} do not have the sizes in its config.json (first: {name})",
                "fetch or export it again",
            )
    network.load_state_dict({name: tensors[name] for name in wanted}, strict=False, assign=True)
