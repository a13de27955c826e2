"""Build the configured draft-length policy with its cost table, learned state and user caps."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from functools import partial

from codespec.contract.engine_config import EngineConfig, split_policy
from codespec.contract.types import PREDICTION
from codespec.json_store import digest
from codespec.models.language_model import LanguageModel
from codespec.proposers.base import Proposer
from codespec.speculation.cost_policy import CostPolicy
from codespec.speculation.policy import (
    ConfidenceStopped,
    DraftLengthPolicy,
    Ds4Table,
    FixedLength,
    PlusTwoMinusOne,
    UserCapped,
)
from codespec.speculation.store import Learned
from codespec.startup.costs import kept_table, price
from codespec.startup.tuning import longest_draft, longest_prediction


def choose_policy(
    config: EngineConfig,
    proposer: Proposer | None,
    target: LanguageModel,
    drafter: LanguageModel | None,
    notes: MutableSequence[str],
) -> DraftLengthPolicy:
    """Return the configured policy. Messages for the user go to `notes`.

    The models' slots must be free, because the models are timed.
    """
    name, number = split_policy(config.policy)
    longest = longest_draft(config.draft_tokens, None)
    policy: DraftLengthPolicy
    if name.startswith("cost"):
        policy = _cost_policy(config, proposer, target, drafter, notes) if proposer else FixedLength(0)
    elif name == "fixed":
        policy = FixedLength(longest if number is None else int(number))
    elif name == "confidence":
        policy = ConfidenceStopped(longest, config.min_confidence if number is None else number)
    elif name == "plus2minus1":
        policy = PlusTwoMinusOne(longest)
    else:
        policy = Ds4Table(longest)
    return UserCapped(policy, config.caps) if config.caps else policy


def _cost_policy(
    config: EngineConfig,
    proposer: Proposer,
    target: LanguageModel,
    drafter: LanguageModel | None,
    notes: MutableSequence[str],
) -> CostPolicy:
    heads = [repr(head.config) for head in proposer.heads.values()]
    learned = Learned(pair_fingerprint(target, drafter, heads), notes) if config.learn else None
    costs = price(target, proposer.models, notes, proposer.heads)
    table = kept_table(target, proposer.models, proposer.heads)
    return CostPolicy(
        costs,
        proposer.names,
        tokens=longest_draft(config.draft_tokens, costs, target.calls.rows),
        longer={PREDICTION: longest_prediction(config.draft_tokens, target.calls.rows)},
        syntax=config.policy == "cost+syntax",
        acceptance=learned.load() if learned else None,
        keep=learned.save if learned else None,
        running=True,
        keep_costs=partial(table.save, notes=notes) if config.learn else None,
    )


def pair_fingerprint(target: LanguageModel, drafter: LanguageModel | None, heads: Sequence[str] = ()) -> str:
    """Return an id of the pair for learned state.

    It covers both models' names, architectures and tokenizers, and the heads' shapes.
    """
    facts: list[object] = [
        (model.spec.name, model.spec.architecture, model.spec.vocab_size, model.tokenizer.fingerprint)
        for model in (target, drafter)
        if model is not None
    ]
    facts += heads
    return digest(facts)
