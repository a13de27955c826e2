"""Read the properties of a model that matter for pairing from its files.

Missing or broken files raise an error. A complete model that can't be used (a lossy tokenizer, an architecture without
rollback) has `reasons`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from codespec.errors import Fault, ModelError, TokenizerError
from codespec.store.conversions import source_parameters, source_quantization
from codespec.store.model_config import check_claims, context_length, text_config, why_unsuitable
from codespec.store.resolve import ModelRef
from codespec.store.weights import Weights, read_weights
from codespec.text.control_tokens import read_json
from codespec.text.fim_templates import FimMissing, FimTemplate, find_template
from codespec.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One side of a pair. `reasons` say why it can't be used; without a usable tokenizer, `tokenizer` is None.

    `file_bytes` is the size of a GGUF file, whose bits the native kernels keep; 0 for a folder.
    """

    name: str
    config: Mapping[str, Any]
    weights: Weights
    tokenizer: TextTokenizer | None
    reasons: tuple[Fault, ...]
    file_bytes: int = 0

    @property
    def context(self) -> int | None:
        """Maximum context length in tokens."""
        return context_length(self.config)

    @property
    def stored_as(self) -> str:
        """The weights' dtype: the format of a GGUF file, even if converted floats with its loss are kept beside it."""
        return source_quantization(self.config) or self.weights.dtype

    @property
    def template(self) -> FimTemplate | FimMissing | None:
        """The fill-in-the-middle template; None without a usable tokenizer."""
        return None if self.tokenizer is None else find_template(self.tokenizer)


def read_facts(model: ModelRef) -> ModelFacts:
    """Read a model's files. Raises ModelError for missing or broken ones."""
    folder = model.folder()
    config = read_json(folder / "config.json")
    if not config:
        raise ModelError(f"{folder} has no config.json", "give a folder in the Hugging Face layout")
    if count := source_parameters(config):  # a GGUF file's, known without a folder that holds the weights
        weights = Weights(count, source_quantization(config))
    else:
        check_claims(folder)
        weights = read_weights(folder, tied=bool(text_config(config).get("tie_word_embeddings")))
    if not read_json(folder / "tokenizer.json"):
        raise ModelError(f"{folder} has no tokenizer.json", "add one, or give a complete Hugging Face model folder")
    for name in ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        read_json(folder / name)
    tokenizer, lossy = None, None
    try:
        tokenizer = TextTokenizer.from_folder(folder)
    except TokenizerError as error:
        lossy = error.fault
    reasons = (why_unsuitable(config), lossy, _overflow(tokenizer, text_config(config).get("vocab_size")))
    file_bytes = model.path.stat().st_size if model.form == "gguf" and model.path is not None else 0
    return ModelFacts(
        model.name, config, weights, tokenizer, tuple(reason for reason in reasons if reason is not None), file_bytes
    )


def _overflow(tokenizer: TextTokenizer | None, rows: object) -> Fault | None:
    """Return why ordinary text can have ids outside an embedding of so many rows; None if it can't."""
    if tokenizer is None or not isinstance(rows, int) or not any(tokenizer.token_bytes[rows:]):
        return None
    last = max(number for number, data in enumerate(tokenizer.token_bytes) if data)
    what = f"the tokenizer has ids up to {last}, and the model has {rows} rows"
    return Fault("tokenizer_foreign", what, "take the model's own tokenizer")
