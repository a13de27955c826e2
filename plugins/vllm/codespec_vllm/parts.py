"""Load what drafting needs: the target's tokenizer, the proposers, and the draft-length policy."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from codespec.contract.engine_config import SHIPPED
from codespec.errors import ModelError, TokenizerError
from codespec.models.loader import load_drafter
from codespec.models.text_tokenizer import load_tokenizer
from codespec.proposers.base import Proposer
from codespec.proposers.chain import ChainProposer
from codespec.proposers.draft_model import DraftModel, has_tokens_of
from codespec.proposers.suffix import SuffixProposer
from codespec.speculation.cost_model import CostTable, Curve, ForwardCost, Point
from codespec.speculation.cost_policy import CostPolicy
from codespec.startup.timing import measure
from codespec.store.resolve import resolve
from codespec.text.tokenizer import TextTokenizer
from codespec_vllm.settings import Settings

LOG = logging.getLogger("vllm.codespec")  # under vLLM's logger, so that it prints
SECONDS = 1.0  # to time the drafter
ROW_SHARE = 0.04  # seconds of one more row over those of one row, until steps with drafts were seen
GRID = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # rows of the target's first cost table
DRAFTS = Curve((1, 8), (5e-4, 1.5e-3))  # seconds of a step's drafts beside forwards: lookups, retokenization
CHUNK = 128  # drafter tokens that a row reads in one call if there are other rows


def target_tokenizer(name: str) -> TextTokenizer:
    """Return the tokenizer of vLLM's target: a folder, or a hub id that vLLM has downloaded. Raises ModelError."""
    path = resolve(name).fetched()
    if path is None:
        raise ModelError(f"The tokenizer of {name} is not on this machine: give --tokenizer a folder.")
    return load_tokenizer(path if path.is_dir() else resolve(name).folder())


def load_proposers(settings: Settings, target: TextTokenizer) -> ChainProposer:
    """Return the lookup and, if it can be loaded, the drafter with a slot for each row."""
    parts: list[Proposer] = [SuffixProposer()]
    try:
        if settings.drafter != "none":
            parts.append(_load_drafter(settings, target))
    except (ModelError, TokenizerError) as error:
        LOG.warning("codespec drafts by lookup only: %s", error)
    return ChainProposer(parts)


def time_drafters(proposers: ChainProposer) -> dict[str, ForwardCost]:
    """Return the costs of each drafter's forward on this machine, by its name."""
    times = {name: measure([model], SECONDS)[0] for name, model in proposers.models.items()}
    return {name: ForwardCost.from_points(Point(*at, found[at]) for at in found) for name, found in times.items()}


def cost_policy(
    drafters: Mapping[str, ForwardCost], sources: Sequence[str], tokens: int, steps: Sequence[tuple[int, float]]
) -> CostPolicy:
    """Return the policy for drafts of up to `tokens` tokens. `steps` are (rows, seconds) of steps without drafts.

    The target's costs begin as a guess from these, and follow the steps that run.
    """
    one = median(seconds / (1.0 + ROW_SHARE * (rows - 1)) for rows, seconds in steps)
    target = ForwardCost.from_points(Point(rows, 1, 0, one * (1.0 + ROW_SHARE * (rows - 1))) for rows in GRID)
    return CostPolicy(CostTable(target, drafters, DRAFTS), sources, tokens=tokens, syntax=False, running=True)


def _load_drafter(settings: Settings, target: TextTokenizer) -> DraftModel:
    name = settings.drafter if settings.drafter != "auto" else str(_shipped(target))
    model = load_drafter(name, settings.device, settings.dtype)
    context = min(settings.context, model.spec.max_length)
    model.allocate(settings.most_rows, context + 1)
    return DraftModel(model, context, settings.most_rows, target=target, chunk=CHUNK)


def _shipped(target: TextTokenizer) -> Path:
    """Return the shipped drafter with tokens of the target's own, or else the one for any target."""
    own = SHIPPED / "qwen-drafter"
    return own if own.is_dir() and has_tokens_of(target, load_tokenizer(own)) else SHIPPED / "drafter"
