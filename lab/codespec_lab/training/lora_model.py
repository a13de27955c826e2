"""Fill-in-the-middle training of a causal model: LoRA matrices (Hu et al. 2021, peft) and four token vectors."""

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

from codespec.errors import TrainingError
from codespec.files import read_json
from codespec.store.conversions import hash_once
from codespec.store.resolve import resolve
from codespec.text.tokenizer import TextTokenizer
from codespec_lab.corpus.documents import write_atomically
from codespec_lab.training.adapt_samples import Batch, Sentinels, choose_sentinels, initial_vectors

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
SETTINGS_FILE = "tokenizer_config.json"
ADAPTER = "default"  # peft's name for the adapter
UNIT = 128  # counted positions are padded to a multiple, to limit shapes and compiled kernels


@dataclass(frozen=True, slots=True)
class BatchLoss:
    """The weighted mean loss of a batch, and the nats and label of each counted position."""

    loss: Tensor
    nats: Tensor
    labels: Tensor


class LoraModel:
    """A model in training. `matrices` are the LoRA weights, `vectors` [4, width] the sentinels'; both are float32."""

    def __init__(
        self, name: str, *, rank: int, sentinels: tuple[str, ...] = (), seed: int = 0, dtype: str, device: str = "cpu"
    ) -> None:
        self.name, self.folder, self.rank = name, resolve(name).base_folder(), rank
        self.tokenizer = TextTokenizer.from_folder(self.folder)
        network = _load_network(self.folder, dtype).to(device)
        self._table: Tensor = network.get_input_embeddings().weight
        self.sentinels = choose_sentinels(self.tokenizer, self._table, sentinels)
        initial = initial_vectors(self._table, self.sentinels, sorted(self.tokenizer.model_eos_ids), seed)
        torch.manual_seed(seed)
        self._peft = _add_lora(network, rank, self.sentinels.ids)
        trained = {name: value for name, value in self._peft.named_parameters() if value.requires_grad}
        for value in trained.values():
            value.data = value.data.float()
        self.matrices = [value for name, value in trained.items() if "lora_" in name]
        (self.vectors,) = [value for name, value in trained.items() if "lora_" not in name]
        self.vectors.data.copy_(initial)
        self._trained = {name.replace(f".{ADAPTER}", ""): value for name, value in trained.items()}
        self._body: Any = network.model
        self._ids = torch.tensor(self.sentinels.ids, device=device)

    def compute_loss(self, batch: Batch) -> BatchLoss:
        """Return the loss of a batch."""
        ids, weights = batch.ids.to(self._ids.device), batch.weights.to(self._ids.device).flatten()
        hidden = self._body(inputs_embeds=self._embed(ids), use_cache=False).last_hidden_state.flatten(0, 1)
        counted = weights.nonzero()[:, 0]
        padding = torch.zeros(-len(counted) % UNIT, dtype=torch.long, device=counted.device)
        positions = torch.cat([counted, padding])
        chosen, labels = hidden[positions], batch.labels.to(positions.device).flatten()[positions]
        logits = (chosen @ self._table.T).float()
        logits = logits.index_copy(1, self._ids, chosen.float() @ self.vectors.T)
        nats = cross_entropy(logits, labels, reduction="none")[: len(counted)]
        loss = (nats * weights[counted]).sum() / weights[counted].sum().clamp(min=1e-6)
        return BatchLoss(loss, nats.detach(), labels[: len(counted)])

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Identity of a checkpoint, as plain values: hashes of the model's weights, the rank and the sentinels."""
        digests = [hash_once(file) for file in sorted(self.folder.glob("*.safetensors"))]
        return {"weights": digests, "rank": self.rank, "sentinels": list(self.sentinels.ids)}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the trained tensors under peft's names."""
        return {name: value.detach() for name, value in self._trained.items()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the result of `state_dict`. Raise TrainingError if the shapes differ."""
        if {name: value.shape for name, value in state.items()} != {n: v.shape for n, v in self._trained.items()}:
            raise TrainingError("The adapter to continue has other shapes: give the same model and --rank.")
        for name, value in self._trained.items():
            value.copy_(state[name])

    def export(self, folder: Path, card: str) -> None:
        """Write the bfloat16 adapter in peft's layout, with its card and its FIM prompt settings."""
        weights = {name: value.to("cpu", torch.bfloat16).contiguous() for name, value in self.state_dict().items()}
        write_atomically(folder / WEIGHTS_FILE, save(weights, metadata={"format": "pt"}))
        config = self._peft.peft_config[ADAPTER].to_dict()
        config = {name: sorted(value) if isinstance(value, set) else value for name, value in config.items()}
        config |= {"base_model_name_or_path": self.name, "inference_mode": True}
        write_atomically(folder / CONFIG_FILE, json.dumps(config, indent=1, default=str).encode() + b"\n")
        write_atomically(folder / SETTINGS_FILE, json.dumps(self._settings(), indent=1).encode() + b"\n")
        write_atomically(folder / "README.md", card.encode())

    def _settings(self) -> dict[str, Any]:
        """Return the tokenizer's settings with the FIM tokens that `text.fim_templates` reads."""
        file = self.folder / SETTINGS_FILE
        settings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        names = {number: name for name, number in self.tokenizer.vocab.items()}
        marks = ("fim_prefix", "fim_suffix", "fim_middle", "fim_end")
        settings |= {mark: names[number] for mark, number in zip(marks, self.sentinels.ids, strict=True)}
        return settings | {"codespec_fim_orders": ["psm", "spm"]}

    def _embed(self, ids: Tensor) -> Tensor:
        """Return the token vectors, [rows, length, width], with the trained ones for the sentinels."""
        vectors = embedding(ids, self._table)
        which = (ids[..., None] == self._ids).to(vectors.dtype)
        return torch.where(which.any(-1, keepdim=True), which @ self.vectors.to(vectors.dtype), vectors)


def read_adapter(folder: Path, sentinels: Sentinels) -> dict[str, Tensor]:
    """Return the tensors of an exported adapter. Raise TrainingError if it is missing or has other sentinels."""
    file = folder / WEIGHTS_FILE
    tokens = read_json(folder / CONFIG_FILE).get("trainable_token_indices") or {}
    if [sorted(found) for found in tokens.values()] != [sorted(sentinels.ids)]:
        raise TrainingError(f"The adapter {folder} has other sentinels: name its own with --sentinels.")
    if not file.is_file():
        raise TrainingError(f"{folder} holds no {WEIGHTS_FILE}: give a folder that `codespec train adapt` made.")
    return {name: value.float() for name, value in load_file(file).items()}


def _load_network(folder: Path, dtype: str) -> Any:
    network: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), trust_remote_code=False, use_safetensors=True
    )
    if not network.config.get_text_config().tie_word_embeddings:
        raise TrainingError(f"The output head of {folder} is not tied to its embedding: choose a model that ties them.")
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
    return attach_lora(network, config)


def attach_lora(network: Any, config: LoraConfig) -> PeftModel:
    """Return a network with the LoRA matrices of a configuration."""
    with warnings.catch_warnings():  # peft uses a name that transformers deprecates
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        model = get_peft_model(network, config)
    assert isinstance(model, PeftModel)
    return model
