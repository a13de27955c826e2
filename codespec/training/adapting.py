"""A causal model with LoRA matrices and four trainable token vectors: what it is made of, its loss, its files.

LoRA (Hu et al. 2021) by peft, whose layout the result has. Knows the network; knows no samples and no schedule.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding
from transformers import AutoModelForCausalLM

from codespec.catalogue.conversion_cache import hash_once
from codespec.errors import TrainingError
from codespec.folders.find import find_base_folder
from codespec.text.control_tokens import read_json
from codespec.text.tokenizer import TextTokenizer
from codespec.training.adapt_samples import Rows
from codespec.training.checkpoint import write_atomically
from codespec.training.merged_lora import MergedLora
from codespec.training.sentinels import Sentinels, choose_sentinels, first_rows

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
SETTINGS_FILE = "tokenizer_config.json"
UNIT = 128  # counted positions come in multiples of so many: few shapes, few compiled kernels


@dataclass(frozen=True, slots=True)
class Judged:
    """What a step's counted positions cost: the weighted mean to descend, and each position's nats and label."""

    loss: Tensor
    nats: Tensor
    labels: Tensor


class Adapting:
    """One model in training. `matrices` are LoRA's, `rows` the vectors of its sentinels, [4, width]; both float32."""

    def __init__(
        self, name: str, *, rank: int, sentinels: tuple[str, ...] = (), seed: int = 0, dtype: str, device: str = "cpu"
    ) -> None:
        self.name, self.folder, self.rank = name, find_base_folder(name), rank
        self.tokenizer = TextTokenizer.from_folder(self.folder)
        network = _load(self.folder, dtype).to(device)
        self._table: Tensor = network.get_input_embeddings().weight
        self.sentinels = choose_sentinels(self.tokenizer, self._table, sentinels)
        first = first_rows(self._table, self.sentinels, sorted(self.tokenizer.model_eos_ids), seed)
        torch.manual_seed(seed)
        self._peft = _add_lora(network, rank, self.sentinels.ids)
        trained = {name: value for name, value in self._peft.named_parameters() if value.requires_grad}
        for value in trained.values():
            value.data = value.data.float()
        self.matrices = [value for name, value in trained.items() if "lora_" in name]
        (self.rows,) = [value for name, value in trained.items() if "lora_" not in name]
        self.rows.data.copy_(first)
        self._names = {name.replace(".default", ""): value for name, value in trained.items()}
        self._body: Any = network.model
        self._ids = torch.tensor(self.sentinels.ids, device=device)
        self._merged = MergedLora(network)

    def judge(self, rows: Rows) -> Judged:
        """The loss of a batch; call `refresh` after each update."""
        ids, weights = rows.ids.to(self._ids.device), rows.weights.to(self._ids.device).flatten()
        hidden = self._body(inputs_embeds=self._embed(ids), use_cache=False).last_hidden_state.flatten(0, 1)
        counted = weights.nonzero()[:, 0]
        spare = torch.zeros(-len(counted) % UNIT, dtype=torch.long, device=counted.device)
        at = torch.cat([counted, spare])
        chosen, labels = hidden[at], rows.labels.to(at.device).flatten()[at]
        logits = (chosen @ self._table.T).float()
        logits = logits.index_copy(1, self._ids, chosen.float() @ self.rows.T)
        nats = cross_entropy(logits, labels, reduction="none")[: len(counted)]
        loss = (nats * weights[counted]).sum() / weights[counted].sum().clamp(min=1e-6)
        return Judged(loss, nats.detach(), labels[: len(counted)])

    def refresh(self) -> None:
        """Makes the next `judge` see the last update."""
        self._merged.refresh()

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What an adapter belongs to, as plain values: the model's weights, the rank and the sentinels."""
        digests = [hash_once(file) for file in sorted(self.folder.glob("*.safetensors"))]
        return {"weights": digests, "rank": self.rank, "sentinels": list(self.sentinels.ids)}

    def state(self) -> dict[str, Tensor]:
        """What is trained, by peft's names."""
        return {name: value.detach() for name, value in self._names.items()}

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """Takes up what `state` gave. TrainingError where it belongs to another shape."""
        if {name: value.shape for name, value in state.items()} != {n: v.shape for n, v in self._names.items()}:
            raise TrainingError("The adapter to go on with has other shapes: give the same model and --rank.")
        for name, value in self._names.items():
            value.copy_(state[name])
        self.refresh()

    def export(self, folder: Path, card: str) -> None:
        """Writes the adapter in peft's layout, in bfloat16, and how it fills in; the rest is the model's own."""
        weights = {name: value.to("cpu", torch.bfloat16).contiguous() for name, value in self.state().items()}
        write_atomically(folder / WEIGHTS_FILE, save(weights, metadata={"format": "pt"}))
        config = self._peft.peft_config["default"].to_dict()
        config = {name: sorted(value) if isinstance(value, set) else value for name, value in config.items()}
        config |= {"base_model_name_or_path": self.name, "inference_mode": True}
        write_atomically(folder / CONFIG_FILE, json.dumps(config, indent=1, default=str).encode() + b"\n")
        write_atomically(folder / SETTINGS_FILE, json.dumps(self._settings(), indent=1).encode() + b"\n")
        write_atomically(folder / "README.md", card.encode())

    def _settings(self) -> dict[str, Any]:
        """The tokenizer's settings, which say how the model fills in (see `text.fim_templates`)."""
        file = self.folder / SETTINGS_FILE
        settings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        names = {number: name for name, number in self.tokenizer.vocab.items()}
        marks = ("fim_prefix", "fim_suffix", "fim_middle", "fim_end")
        settings |= {mark: names[number] for mark, number in zip(marks, self.sentinels.ids, strict=True)}
        return settings | {"codespec_fim_orders": ["psm", "spm"]}

    def _embed(self, ids: Tensor) -> Tensor:
        """The tokens' vectors, [rows, length, width]; a sentinel's is the trained one."""
        vectors = embedding(ids, self._table)
        which = (ids[..., None] == self._ids).to(vectors.dtype)
        return torch.where(which.any(-1, keepdim=True), which @ self.rows.to(vectors.dtype), vectors)


def read_adapter(folder: Path, sentinels: Sentinels) -> dict[str, Tensor]:
    """The trained tensors of an exported adapter with these sentinels. TrainingError if there are none."""
    file = folder / WEIGHTS_FILE
    tokens = read_json(folder / CONFIG_FILE).get("trainable_token_indices") or {}
    if [sorted(found) for found in tokens.values()] != [sorted(sentinels.ids)]:
        raise TrainingError(f"The adapter {folder} has other sentinels: name its own with --sentinels.")
    if not file.is_file():
        raise TrainingError(f"{folder} holds no {WEIGHTS_FILE}: give a folder that `codespec train adapt` made.")
    return {name: value.float() for name, value in load_file(file).items()}


def _load(folder: Path, dtype: str) -> Any:
    network: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), trust_remote_code=False, use_safetensors=True
    )
    if not network.config.get_text_config().tie_word_embeddings:
        raise TrainingError(
            f"{folder} has an output head of its own, and only tied ones are taught: take another model."
        )
    network.requires_grad_(False)
    return network


def _add_lora(network: Any, rank: int, tokens: tuple[int, ...]) -> PeftModel:
    table = network.get_input_embeddings()
    (name,) = [name for name, module in network.named_modules() if module is table]
    config = LoraConfig(
        r=rank,
        lora_alpha=rank,
        target_modules="all-linear",
        trainable_token_indices={name.rpartition(".")[2]: list(tokens)},
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():  # peft asks transformers by a name that transformers is giving up
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        model = get_peft_model(network, config)
    assert isinstance(model, PeftModel)
    return model
