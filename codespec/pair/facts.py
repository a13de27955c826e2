"""Read the properties of a model that matter for pairing from its files.

Missing or broken files raise an error. A complete model that can't be used (a lossy tokenizer, an architecture without
rollback) is a finding, stored as a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codespec.errors import Fault, ModelError, TokenizerError
from codespec.store.conversions import source_parameters, source_quantization
from codespec.store.model_config import (
    Layers,
    architecture,
    check_claims,
    context_length,
    read_layers,
    text_config,
    why_unsuitable,
)
from codespec.store.resolve import ModelRef
from codespec.store.weights import Weights, read_weights
from codespec.text.control_tokens import read_json
from codespec.text.fim_templates import FimMissing, FimTemplate, find_template
from codespec.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One side of a pair. `unsuitable` and `lossy` are reasons why it can't be used, or None."""

    name: str
    config: Mapping[str, Any]
    weights: Weights
    tokenizer: TextTokenizer | None
    tokenizer_class: str
    unsuitable: Fault | None
    lossy: Fault | None

    @property
    def architecture(self) -> str:
        """Name of the model's class in config.json."""
        return architecture(self.config)

    @property
    def context(self) -> int | None:
        """Maximum context length in tokens."""
        return context_length(self.config)

    @property
    def layers(self) -> Layers:
        """The state that its layers keep for each sequence, and its experts."""
        return read_layers(self.config)

    @property
    def quantization(self) -> str:
        """Original format of a converted model ("Q4_1"), or "" for any other."""
        return source_quantization(self.config)

    @property
    def vocab_rows(self) -> int | None:
        """Rows of the embedding according to config.json."""
        value = text_config(self.config).get("vocab_size")
        return value if isinstance(value, int) else None

    @property
    def template(self) -> FimTemplate | FimMissing | None:
        """The fill-in-the-middle template; None without a usable tokenizer."""
        return None if self.tokenizer is None else find_template(self.tokenizer)

    @property
    def overflow(self) -> Fault | None:
        """Why ordinary text can have ids outside the embedding; None if it can't."""
        if self.tokenizer is None or self.vocab_rows is None:
            return None
        last = max((number for number, data in enumerate(self.tokenizer.token_bytes) if data), default=-1)
        if last < self.vocab_rows:
            return None
        what = f"the tokenizer has ids up to {last}, and the model has {self.vocab_rows} rows"
        return Fault("tokenizer_foreign", what, "take the model's own tokenizer")

    @property
    def reasons(self) -> tuple[Fault, ...]:
        """All reasons why the model is unusable."""
        return tuple(reason for reason in (self.unsuitable, self.lossy, self.overflow) if reason is not None)


def read_facts(model: ModelRef) -> ModelFacts:
    """Read a model's files. Raises ModelError for missing or broken ones."""
    folder = model.folder()
    config = _config(folder)
    if not source_parameters(config):
        check_claims(folder)
    settings = read_json(folder / "tokenizer_config.json")
    tokenizer, lossy = _tokenizer(folder)
    return ModelFacts(
        name=model.name,
        config=config,
        weights=_weights(folder, config),
        tokenizer=tokenizer,
        tokenizer_class=str(settings.get("tokenizer_class") or config.get("tokenizer_class") or ""),
        unsuitable=why_unsuitable(config),
        lossy=lossy,
    )


def _weights(folder: Path, config: Mapping[str, Any]) -> Weights:
    """Return the count and format of the weights; those of a GGUF file are known without a folder that holds them."""
    if count := source_parameters(config):
        return Weights(count, source_quantization(config))
    return read_weights(folder, tied=bool(text_config(config).get("tie_word_embeddings")))


def _config(folder: Path) -> Mapping[str, Any]:
    config = read_json(folder / "config.json")
    if not config:
        raise ModelError(f"{folder} has no config.json", "give a folder in the Hugging Face layout")
    return config


def _tokenizer(folder: Path) -> tuple[TextTokenizer | None, Fault | None]:
    """Return the tokenizer, or None and the reason for rejecting it.

    Raises ModelError for files that are missing or not JSON.
    """
    if not read_json(folder / "tokenizer.json"):
        raise ModelError(f"{folder} has no tokenizer.json", "add one, or give a complete Hugging Face model folder")
    for name in ("special_tokens_map.json", "generation_config.json"):
        read_json(folder / name)
    try:
        return TextTokenizer.from_folder(folder), None
    except TokenizerError as error:
        return None, error.fault
