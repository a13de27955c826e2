"""The pair to measure: loaded models with their slots, outside any engine, so that many engines can share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from codespec.api.config import EngineConfig
from codespec.backends.language_model import LanguageModel
from codespec.backends.loader import load_model
from codespec.backends.memory_plan import Need, make_room
from codespec.errors import ConfigError
from codespec.proposers.base import Proposer
from codespec.proposers.draft_model import DraftModel
from codespec.proposers.lookup import SuffixProposer
from codespec.store.machine import USUAL_CONTEXT

LONGEST = 16  # the longest draft, in target tokens, that the benchmarks allocate for


@dataclass(frozen=True, slots=True)
class Pair:
    """Loaded models, the most tokens of a prompt with its completion (`context`), and the number of tokens before the
    first draft (`warmup`); `notes` list limitations of a GPU.
    """

    target: LanguageModel
    drafter: LanguageModel | None
    context: int
    warmup: int
    notes: tuple[str, ...] = ()

    @property
    def drafters(self) -> Mapping[str, LanguageModel]:
        """Return the draft model by its proposer's name."""
        return {} if self.drafter is None else {DraftModel.name: self.drafter}

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the proposers' names, cheapest first."""
        return (SuffixProposer.name, *self.drafters)

    @property
    def drafter_context(self) -> int:
        """Return the drafter's context length in tokens."""
        return min(self.drafter.spec.max_length, self.context) if self.drafter else 0

    @property
    def shares_ids(self) -> bool:
        """Return whether drafts are passed as ids, because both models have the same vocabulary."""
        return self.drafter is not None and self.drafter.tokenizer.fingerprint == self.target.tokenizer.fingerprint

    def proposers(self, batch: int = 1) -> list[Proposer]:
        """Return new proposers with empty caches, cheapest first."""
        found: list[Proposer] = [SuffixProposer()]
        if self.drafter is not None:
            shared, context = self.target.tokenizer, self.drafter_context
            # Prefills a whole prompt at once, as for a single request: a recording has a draft at every position.
            found.append(DraftModel(self.drafter, context, batch, target=shared, chunk=context))
        return found

    def facts(self) -> dict[str, Any]:
        """Return names and sizes for reports, without folders."""
        models = {"target": self.target, "drafter": self.drafter}
        return {role: _facts(model) for role, model in models.items() if model is not None}


def load_pair(config: EngineConfig, batch: int, longest: int) -> Pair:
    """Load the configuration's models, with graphs as in an engine and slots for `batch` sequences whose drafts have up
    to `longest` tokens.

    Raise ConfigError if the arithmetic depends on the batch: a text would then depend on the policy and could not be
    replayed.
    """
    import torch  # takes a second, and the demo reads a pair without it

    from codespec.startup.batch_invariance import MIN_LENGTH, check_exact

    torch.set_num_threads(max(1, config.threads))
    target = load_model(config.target, device=config.device, dtype=config.dtype, exact=True)
    drafter = None
    if config.drafter != "none" and config.asks_drafter:
        where = config.device if config.drafter_device == "same" else config.drafter_device
        drafter = load_model(config.drafter, device=where, dtype=config.drafter_dtype, exact=False)
    context = min(target.spec.max_length, config.context or USUAL_CONTEXT)
    pair = Pair(target, drafter, context, config.warmup)
    verified, read = batch * (longest + 1), batch * pair.drafter_context
    needs = [Need(target, max(2, batch), max(MIN_LENGTH, pair.context), pair.context + verified, verified)]
    if drafter is not None:
        needs.append(Need(drafter, batch, pair.drafter_context + 1, read, batch))
    notes: list[str] = []
    make_room(needs, config.graph_rows, lambda phase: None, notes)
    for need in needs:
        variance = check_exact(need.model, []) if need.model.checked else ""
        if variance:
            raise ConfigError(
                f"This target can't be replayed ({variance}): choose another --dtype, --device or target."
            )
    return replace(pair, notes=tuple(notes))


def _facts(model: LanguageModel) -> dict[str, Any]:
    spec = model.spec
    return {
        "name": spec.name.rstrip("/").rpartition("/")[2],
        "parameters": spec.parameters,
        "vocabulary": len(model.tokenizer.token_bytes),
        "dtype": spec.dtype,
    }
