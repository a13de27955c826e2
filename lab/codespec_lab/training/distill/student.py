"""A drafter in training: all weights if it is small, LoRA matrices (Hu et al. 2021, peft) if it is not."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils import logging as transformers_logging

from codespec.api.config import SHIPPED
from codespec.backends.torch.model_check import quiet
from codespec.errors import ModelError, TrainingError
from codespec.store.resolve import resolve
from codespec.text.fim_templates import FimMissing, find_template
from codespec.text.tokenizer import TextTokenizer
from codespec_lab.training.lora_model import attach_lora
from codespec_lab.training.pair import SHAPES

FULL_UP_TO = 40_000_000  # parameters
RANK = 16
NEW = "new:"
NEW_SIZES = {"1M": SHAPES["drafter"], "5M": replace(SHAPES["target"], vocab_size=SHAPES["drafter"].vocab_size)}
# Files to copy with the weights.
_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


class Student:
    """A drafter to train: a model's `name`, or `new:` and a size.

    A new drafter has the starter drafter's tokenizer and random weights.
    """

    def __init__(self, name: str, *, seed: int, lora: bool | None = None, device: str = "cpu") -> None:
        self.name, self.is_new = name, name.startswith(NEW)
        self.folder = SHIPPED / "drafter" if self.is_new else resolve(name).folder("float32")
        self.tokenizer = TextTokenizer.from_folder(self.folder)
        found = find_template(self.tokenizer)
        self.template = None if isinstance(found, FimMissing) else found
        torch.manual_seed(seed)
        network = _new_network(name.removeprefix(NEW)) if self.is_new else _load(self.folder)
        self._dtype = torch.bfloat16 if self.is_new else next(network.parameters()).dtype
        network = network.float().to(device)
        self.parameters = sum(value.numel() for value in network.parameters())
        self.lora = self.parameters > FULL_UP_TO if lora is None else lora
        self.network: Any = _with_lora(network) if self.lora else network
        self.device = torch.device(device)
        self.trained = {name: value for name, value in self.network.named_parameters() if value.requires_grad}

    def logits(self, tokens: Tensor) -> Tensor:
        """Return logits [B, T, vocabulary] for token rows [B, T]."""
        found: Tensor = self.network(input_ids=tokens.to(self.device), use_cache=False).logits
        return found

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of the trained weights."""
        return {name: value.detach().clone() for name, value in self.trained.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the result of `state_dict`. Raise TrainingError if it belongs to another drafter."""
        if {name: value.shape for name, value in state.items()} != {n: v.shape for n, v in self.trained.items()}:
            raise TrainingError("The checkpoint belongs to another drafter: give the same one, or another --out.")
        for name, value in self.trained.items():
            value.copy_(state[name])

    def export(self, folder: Path) -> None:
        """Write the whole drafter, adapter merged, in its original dtype. Raise TrainingError."""
        network = copy.deepcopy(self.network)
        network = network.merge_and_unload() if self.lora else network
        network = network.to(self._dtype)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with quiet():
                network.save_pretrained(folder)
            for file in _FILES:
                if (self.folder / file).is_file():
                    shutil.copyfile(self.folder / file, folder / file)
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise TrainingError(
                f"{folder} cannot be written ({reason}); free some space or choose another folder."
            ) from error


def check_size(name: str) -> None:
    """Raise ModelError if `name` asks for a new drafter of an unknown size."""
    if name.startswith(NEW) and name.removeprefix(NEW).upper() not in NEW_SIZES:
        raise ModelError(f"{name} is no drafter: a new one has the size {' or '.join(NEW_SIZES)}, as in new:1M.")


def _new_network(size: str) -> nn.Module:
    shape = NEW_SIZES[size.upper()]
    config = LlamaConfig(
        **shape.to_config(),
        rope_parameters={"rope_type": "default", "rope_theta": shape.theta},
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=4,
        architectures=["LlamaForCausalLM"],
    )
    network: nn.Module = AutoModelForCausalLM.from_config(config)
    return network


def _load(folder: Path) -> nn.Module:
    loader: Any = AutoModelForCausalLM
    transformers_logging.disable_progress_bar()
    with quiet():
        network: nn.Module = loader.from_pretrained(folder, dtype="auto", trust_remote_code=False, use_safetensors=True)
    return network


def _with_lora(network: nn.Module) -> nn.Module:
    config = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    model = attach_lora(network, config)
    for name, value in model.named_parameters():
        value.requires_grad_("lora_" in name)
    return model
