"""Builds an engine from settings: loads the models, sizes the caches, tries the arithmetic, wires proposers and
policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from codespec.config import EngineConfig, resolve
from codespec.engine.engine import Engine
from codespec.engine.policies import choose_policy
from codespec.models.exactness import LENGTH, find_variance
from codespec.models.language_model import LanguageModel
from codespec.models.loader import load_model
from codespec.models.shapes import SHAPES
from codespec.models.timing import choose_threads
from codespec.proposers.base import Proposer
from codespec.proposers.chain import ChainProposer
from codespec.proposers.draft_model import DraftModel
from codespec.proposers.suffix import SuffixProposer

DEFAULT_CONTEXT = 2048


def load_engine(settings: Mapping[str, Any]) -> Engine:
    """An engine by keyword settings (see `EngineConfig`); unknown ones raise ConfigError."""
    values = dict(settings)
    if "drafter" in values and values["drafter"] is None:
        values["drafter"] = "none"
    for name in ("target", "drafter"):
        if isinstance(values.get(name), Path):
            values[name] = str(values[name])
    return build_engine(resolve(values))


def build_engine(config: EngineConfig) -> Engine:
    """Loads what the configuration names and wires it together."""
    torch.set_num_threads(max(1, config.threads))
    exact = config.mode == "exact"
    shape = SHAPES.get(config.target_shape)
    target = load_model(config.target, device=config.device, dtype=config.dtype, exact=exact, shape=shape)
    drafter = None
    if config.drafter != "none" and config.proposers in ("chain", "draft_model"):
        drafter = load_model(config.drafter, device=config.device, dtype=config.drafter_dtype, exact=exact)
    return assemble(target, drafter, config)


def assemble(target: LanguageModel, drafter: LanguageModel | None, config: EngineConfig) -> Engine:
    """Wires loaded models into an engine; allocates their slots."""
    context = min(target.spec.max_length, config.context or DEFAULT_CONTEXT)

    target.allocate(max(2, config.max_batch), max(LENGTH, context))
    if config.threads == 0:
        torch.set_num_threads(choose_threads(target))
    notes = [*target.spec.notes]
    if config.mode == "exact":
        variance = find_variance(target)
        if variance:
            target.exact = False
            notes.append(f"exact mode does not hold here ({variance}): fast mode is used, near-ties may differ")
    proposer = _proposer(target, drafter, config)
    return Engine(
        target,
        proposer,
        choose_policy(config, proposer, target, drafter, notes),
        context=context,
        max_batch=config.max_batch,
        prefill_chunk=config.prefill_chunk,
        warmup=config.warmup,
        speculate=config.speculate,
        notes=notes,
    )


def _proposer(target: LanguageModel, drafter: LanguageModel | None, config: EngineConfig) -> Proposer | None:
    parts: list[Proposer] = []
    if config.proposers in ("chain", "suffix"):
        parts.append(SuffixProposer())
    if drafter is not None:
        context = min(drafter.spec.max_length, DEFAULT_CONTEXT if not config.context else config.context)
        drafter.allocate(config.max_batch, context + 1)
        parts.append(DraftModel(drafter, context, config.max_batch, shares_ids_with=target.tokenizer))
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else ChainProposer(parts)
