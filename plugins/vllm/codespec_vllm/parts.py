"""Load the target's tokenizer, the proposers and the draft-length policy."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from codespec.api.config import SHIPPED
from codespec.backends.loader import load_model
from codespec.backends.text_tokenizer import load_tokenizer
from codespec.errors import ModelError, TokenizerError
from codespec.proposers.base import Proposer
from codespec.proposers.draft_model import DraftModel
from codespec.proposers.lookup import SuffixProposer
from codespec.speculation.cost_model import CostTable, ForwardCost, Point
from codespec.speculation.cost_policy import CostPolicy
from codespec.startup.timing import measure
from codespec.store.resolve import resolve
from codespec.text.tokenizer import TextTokenizer
from codespec_vllm.settings import Settings

LOG = logging.getLogger("vllm.codespec")  # a child of vLLM's logger, whose messages are shown
SECONDS = 1.0  # duration of the drafter's measurement
ROW_SHARE = 0.04  # assumed cost of each further row relative to the first, until drafts have been verified
GRID = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # rows of the target's initial cost table
DRAFT = 5e-4  # seconds for lookup and retokenization of a draft
CHUNK = 128  # tokens of the drafter's prefill chunk while other rows wait


def target_tokenizer(name: str) -> TextTokenizer:
    """Load the tokenizer of vLLM's target, named by a folder or by a hub id that was downloaded. Raises ModelError."""
    path = resolve(name).fetched()
    if path is None:
        raise ModelError(f"The tokenizer of {name} is not on this machine: give --tokenizer a folder.")
    return load_tokenizer(path if path.is_dir() else resolve(name).folder())


def load_proposers(settings: Settings, target: TextTokenizer) -> list[Proposer]:
    """Make the suffix lookup and, if the drafter can be loaded, a drafter with a cache slot for each row."""
    parts: list[Proposer] = [SuffixProposer()]
    try:
        if settings.drafter != "none":
            parts.append(_load_drafter(settings, target))
    except (ModelError, TokenizerError) as error:
        LOG.warning("codespec drafts by lookup only: %s", error)
    return parts


def time_drafters(proposers: Sequence[Proposer]) -> dict[str, ForwardCost]:
    """Measure the costs of each drafter's forwards on this machine. Return them by the drafter's name."""
    times = {each.name: measure([each.model], SECONDS)[0] for each in proposers if isinstance(each, DraftModel)}
    return {name: ForwardCost.from_points(Point(*at, found[at]) for at in found) for name, found in times.items()}


def cost_policy(
    drafters: Mapping[str, ForwardCost], sources: Sequence[str], tokens: int, steps: Sequence[tuple[int, float]]
) -> CostPolicy:
    """Make the policy for drafts of up to `tokens` tokens. `steps` has (rows, seconds) of steps without drafts.

    The target's initial costs are extrapolated from these steps, and are then corrected by measured steps.
    """
    one = median(seconds / (1.0 + ROW_SHARE * (rows - 1)) for rows, seconds in steps)
    target = ForwardCost.from_points(Point(rows, 1, 0, one * (1.0 + ROW_SHARE * (rows - 1))) for rows in GRID)
    return CostPolicy(CostTable(target, drafters, DRAFT), sources, tokens=tokens, syntax=False, running=True)


def _load_drafter(settings: Settings, target: TextTokenizer) -> DraftModel:
    name = settings.drafter if settings.drafter != "auto" else str(_shipped(target))
    model = load_model(name, device=settings.device, dtype=settings.dtype, exact=False)
    context = min(settings.context, model.spec.max_length)
    model.allocate(settings.max_rows, context + 1)
    return DraftModel(model, context, settings.max_rows, target=target, chunk=CHUNK)


def _shipped(target: TextTokenizer) -> Path:
    """Return the shipped Qwen drafter's folder if all its tokens are target tokens, else the general drafter's."""
    own = SHIPPED / "qwen-drafter"
    fits = own.is_dir() and set(load_tokenizer(own).token_bytes) <= set(target.token_bytes)
    return own if fits else SHIPPED / "drafter"
