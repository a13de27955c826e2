"""The pair that is measured: loaded models with their slots, outside any engine, so that many engines can be put around
them. Knows models and their loader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from codespec.config import EngineConfig
from codespec.engine.load import DEFAULT_CONTEXT
from codespec.errors import ConfigError
from codespec.models.exactness import LENGTH, find_variance
from codespec.models.language_model import LanguageModel
from codespec.models.loader import load_model
from codespec.models.shapes import SHAPES
from codespec.proposers.base import Proposer
from codespec.proposers.draft_model import DraftModel
from codespec.proposers.suffix import SuffixProposer


@dataclass(frozen=True, slots=True)
class Pair:
    """Loaded models, how many tokens a prompt and its completion may have, and how many before the first draft."""

    target: LanguageModel
    drafter: LanguageModel | None
    context: int
    warmup: int

    @property
    def drafters(self) -> Mapping[str, LanguageModel]:
        """The drafting model by its proposer's name."""
        return {} if self.drafter is None else {DraftModel.name: self.drafter}

    @property
    def sources(self) -> tuple[str, ...]:
        """The proposers' names, cheapest first."""
        return (SuffixProposer.name, *self.drafters)

    @property
    def drafter_context(self) -> int:
        """Tokens that the drafter may hold."""
        return min(self.drafter.spec.max_length, self.context) if self.drafter else 0

    @property
    def shares_ids(self) -> bool:
        """Whether drafts cross as ids, because both have one vocabulary."""
        return self.drafter is not None and self.drafter.tokenizer.fingerprint == self.target.tokenizer.fingerprint

    def proposers(self, batch: int = 1) -> list[Proposer]:
        """New proposers that have read nothing and remember nothing, cheapest first."""
        found: list[Proposer] = [SuffixProposer()]
        if self.drafter is not None:
            shared, context = self.target.tokenizer, self.drafter_context
            # It reads a prompt at once, as it does where it is asked alone: a recording has a guess for every position.
            found.append(DraftModel(self.drafter, context, batch, shares_ids_with=shared, chunk=context))
        return found

    def facts(self) -> dict[str, Any]:
        """Names and sizes for reports; no folder."""
        models = {"target": self.target, "drafter": self.drafter}
        return {role: _facts(model) for role, model in models.items() if model is not None}


def load_pair(config: EngineConfig, batch: int) -> Pair:
    """Loads what the configuration names, with slots for `batch` sequences. ConfigError where the arithmetic depends on
    the batch: then a text depends on the policy, and nothing can be replayed.
    """
    torch.set_num_threads(config.threads)
    shape = SHAPES.get(config.target_shape)
    target = load_model(config.target, device=config.device, dtype=config.dtype, exact=True, shape=shape)
    drafter = None
    if config.drafter != "none" and config.proposers != "suffix":
        drafter = load_model(config.drafter, device=config.device, dtype=config.drafter_dtype, exact=True)
    pair = Pair(target, drafter, min(target.spec.max_length, config.context or DEFAULT_CONTEXT), config.warmup)
    target.allocate(max(2, batch), max(LENGTH, pair.context))
    if drafter is not None:
        drafter.allocate(batch, pair.drafter_context + 1)
    variance = find_variance(target)
    if variance:
        raise ConfigError(f"This target can't be replayed ({variance}): choose another --dtype, --device or target.")
    return pair


def _facts(model: LanguageModel) -> dict[str, Any]:
    spec = model.spec
    return {
        "name": spec.name.rstrip("/").rpartition("/")[2],
        "parameters": spec.parameters,
        "vocabulary": len(model.tokenizer.token_bytes),
        "dtype": spec.dtype,
        "simulated": spec.simulated,
    }
