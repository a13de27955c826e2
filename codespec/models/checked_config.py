"""A model folder's configuration, once the sizes in it were found to be borne out by the weights.

Knows transformers' configurations and the shapes of the models they describe, which are made without memory; loads no
weights. transformers makes up what the files lack, at the size that config.json claims: so what it would make is
counted first.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM

from codespec.errors import ModelError
from codespec.model_folders.model_config import check_claims, not_held, why_unsuitable
from codespec.model_folders.weights import Tensor
from codespec.models.seam_check import FAILURES, one_line, quiet
from codespec.text.control_tokens import read_json

PACKED = 8  # numbers of four bits in one of 32
SLACK, SPARE = 2, 1 << 24  # what a model may hold beside its weights: as much again, and numbers of tables
_JSON = ("config.json", "generation_config.json", "model.safetensors.index.json")


def read_config(folder: Path) -> Any:
    """transformers' configuration of a folder; ModelError for one that can't be read, or claims more than is there."""
    for name in _JSON:
        read_json(folder / name)  # transformers reads them too, without a bound
    tensors = check_claims(folder)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (*FAILURES, StrictDataclassError) as error:
        raise ModelError(
            f"The configuration of {folder} can't be read ({one_line(error)}): check the folder or hub id."
        ) from error
    reason = why_unsuitable(config.to_dict())
    if reason:
        raise ModelError(f"{folder} can't be used: {reason}")
    _demand_weights(folder, config, tensors)
    return config


def _demand_weights(folder: Path, config: Any, tensors: Sequence[Tensor]) -> None:
    """ModelError where the model is larger than its weights."""
    held = sum(tensor.count * (PACKED if tensor.dtype[0] in "IU" else 1) for tensor in tensors)
    loader: Any = AutoModelForCausalLM
    try:
        with quiet(), torch.device("meta"):
            network = loader.from_config(copy.deepcopy(config), trust_remote_code=False)
    except FAILURES as error:
        raise ModelError(
            f"The model {folder} can't be loaded ({one_line(error)}): check the folder or choose another model."
        ) from error
    claimed = sum(part.numel() for part in chain(network.parameters(), network.buffers()))
    if claimed > SLACK * held + SPARE:
        raise not_held(folder, f"{claimed / 1e9:.3g} billion numbers", f"{held / 1e9:.3g} billion")
