"""Build an engine's parts: load models, size the caches, check exact mode, and choose the proposers and the policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

from codespec.api.config import EngineConfig
from codespec.backends.language_model import CAPACITY_UNIT, LanguageModel
from codespec.backends.loader import load_files
from codespec.backends.memory_plan import Need, make_room
from codespec.errors import ConfigError, ModelError
from codespec.proposers.base import Proposer
from codespec.proposers.draft_model import DraftModel
from codespec.proposers.lookup import PredictionProposer, SuffixProposer
from codespec.speculation.policy import DraftPolicy
from codespec.startup.tuning import (
    MAX_CHUNK,
    USUAL_CHUNK,
    ReadingSpeed,
    choose_batch,
    choose_chunk,
    choose_policy,
    find_reading,
    find_threads,
    largest_batch,
    prompt_budget,
)
from codespec.store.choice import offer_note
from codespec.store.machine import IDLE_FACTOR, IDLE_MB, USUAL_CONTEXT, choose_context, context_room, machine_memory
from codespec.store.resolve import NATIVE, PairFiles, open_pair
from codespec.user_folders import named_path

if TYPE_CHECKING:
    from codespec.backends.heads.checkpoint import LoadedHead
    from codespec.proposers.head import HeadProposer

MAX_SLOTS = 1024
MIN_LENGTH = 64  # positions in a slot of the target, for the check of batch invariance
# Tokens of the drafter's context per token of the target's prompt budget. The drafter's tokens are shorter, and text
# outside the target's prompt does little for its drafts.
WINDOW = 2

# Names of phases that are shown while the daemon starts.
MEASURING = "measuring threads, reading speed and rounds (about 4 s, at the first start only)"
CHECKING = "checking that no row depends on the others"


class Parts(TypedDict):
    """The arguments of `Engine`."""

    target: LanguageModel
    proposers: list[Proposer]
    policy: DraftPolicy
    caps: Mapping[str, int]
    context: int
    prompt_budget: int
    reading: ReadingSpeed | None
    max_batch: int
    slots: int
    prefill_chunk: int
    warmup: int
    speculate: bool
    notes: list[str]


def load_parts(config: EngineConfig, tell: Callable[[str], None], pair: PairFiles | None = None) -> Parts:
    """Load the configured models, whose files may be open in `pair`; report each loading phase to `tell`."""
    pair = pair or open_pair(config)
    exact = config.mode == "exact"
    target = load_files(pair.target, device=config.device, dtype=config.dtype, exact=exact)
    target.use_threads(max(1, config.threads))
    drafter = None
    if pair.drafter is not None:  # a drafter need not be batch-invariant, because the target verifies all drafts
        where = config.device if config.drafter_device == "same" else config.drafter_device
        drafter = load_files(pair.drafter, device=where, dtype=config.drafter_dtype, exact=False)
    head = load_target_head(target, config)
    parts = prepare(target, drafter, config, tell, head)
    if note := offer_note(config):
        parts["notes"].insert(0, note)
    return parts


def prepare(
    target: LanguageModel,
    drafter: LanguageModel | None,
    config: EngineConfig,
    tell: Callable[[str], None],
    head: LoadedHead | None,
) -> Parts:
    """Allocate cache slots, capture CUDA graphs on a GPU, and take all measurements that no earlier start has saved."""
    context, reads = target_context(target, config), _context(drafter, config) if drafter else 0
    lengths = {target: max(MIN_LENGTH, context)} | ({drafter: reads + 1} if drafter else {})
    most = largest_batch(config, slot_bytes({**lengths, target: max(MIN_LENGTH, _context(target, config))}))
    slots = choose_slots(config, lengths, most)
    chunk, verified = config.prefill_chunk or MAX_CHUNK, max(2, most) * (config.draft_tokens + 1)
    needs = [Need(target, max(2, slots), max(MIN_LENGTH, context), chunk + verified, verified)]
    if drafter is not None:
        needs.append(Need(drafter, slots, reads + 1, reads, most))
    notes = [*target.spec.notes]
    make_room(needs, config.graph_rows, tell, notes)
    _tune_host(needs, config, chunk, tell, notes)
    reading = find_reading(target, notes)
    budget = prompt_budget(reading, config.first_answer_ms, context)
    reader = _head_proposer(target, head, config)
    proposers = _proposers(target, drafter, reader, config, slots, min(reads, WINDOW * budget))
    policy = choose_policy(config, [each.name for each in proposers], target, drafter, notes, reader)
    return Parts(
        target=target,
        proposers=proposers,
        policy=policy,
        caps=config.caps,
        context=context,
        prompt_budget=budget,
        reading=reading if config.first_answer_ms else None,
        max_batch=choose_batch(config, policy.seconds, most),
        slots=slots,
        prefill_chunk=choose_chunk(config, policy.seconds),
        warmup=config.warmup,
        speculate=config.speculate,
        notes=notes,
    )


def _tune_host(
    needs: Sequence[Need], config: EngineConfig, chunk: int, tell: Callable[[str], None], notes: list[str]
) -> None:
    """Set the number of CPU threads of each model, and check that exact mode holds."""
    tell(MEASURING)
    on_host = [need.model for need in needs if str(need.model.device) == "cpu"]
    if on_host:
        threads = config.threads or find_threads(on_host[0], notes)
        for model in on_host:
            model.use_threads(threads)
    for need in needs:
        if need.model.checked:
            from codespec.startup.batch_invariance import check_exact  # loads torch, which only such models need

            tell(CHECKING)
            check_exact(need.model, notes, chunk)
    tell(MEASURING)


def target_context(target: LanguageModel, config: EngineConfig) -> int:
    """Return the maximum tokens of prompt and completion: the setting `context`, or as many as fit in memory."""
    each, usual = slot_bytes({target: CAPACITY_UNIT}) // CAPACITY_UNIT, _context(target, config)
    batch = largest_batch(config, slot_bytes({target: usual}))
    room = context_room(config.cache_mb, target_memory(target))
    return choose_context(config.context, target.spec.max_length, each, batch, room)


def target_memory(target: LanguageModel) -> int:
    """Return the bytes of memory available to a target: the machine's memory, or the GPU's memory minus the weights."""
    if str(target.device) == "cpu":
        return machine_memory() or 0
    import torch

    from codespec.backends.torch.model import TorchModel

    assert isinstance(target, TorchModel)
    whole: int = torch.cuda.mem_get_info(target.device)[1]
    return max(0, whole - target.spec.parameters * target.dtype.itemsize)


def _context(model: LanguageModel, config: EngineConfig) -> int:
    return min(model.spec.max_length, config.context or USUAL_CONTEXT)


def slot_bytes(lengths: Mapping[LanguageModel, int]) -> int:
    """Return the bytes that one slot takes in the caches of the given models, whose `lengths` are in tokens."""
    return sum(model.slot_bytes(length) for model, length in lengths.items())


def choose_slots(config: EngineConfig, lengths: Mapping[LanguageModel, int], batch: int) -> int:
    """Return the number of slots, at least `batch`. Raises ConfigError if `cache_mb` is too small for `batch` slots."""
    each = slot_bytes(lengths)
    if not config.cache_mb:
        return max(batch, min(IDLE_FACTOR * batch, IDLE_MB * 2**20 // each))
    fitting = config.cache_mb * 2**20 // each
    if fitting < batch:
        needed = -(-batch * each // 2**20)
        raise ConfigError(
            f"cache_mb = {config.cache_mb} is too small, because {batch} concurrent requests take {needed} MB",
            f"raise cache_mb to {needed}, or lower max_batch or context",
        )
    return min(fitting, MAX_SLOTS)


def load_target_head(target: LanguageModel, config: EngineConfig) -> LoadedHead | None:
    """Load the configured head and let the target record its hidden states; return None if no head is configured."""
    if not config.asks_head:
        if config.proposers == "head":
            raise ConfigError('proposers = "head" requires a head', "set `head` to the path of a head's folder")
        return None
    if target.spec.dtype == NATIVE:
        fix = "set dtype to bfloat16, or remove the setting head"
        raise ModelError(f"A head can't read the layers of a model with dtype {NATIVE}", fix)
    from codespec.backends.heads.checkpoint import load_head  # with torch
    from codespec.backends.torch.model import TorchModel

    assert isinstance(target, TorchModel)
    head = load_head(named_path(config.head), target)
    target.tap(head.config.layers)
    return head


def _head_proposer(target: LanguageModel, head: LoadedHead | None, config: EngineConfig) -> HeadProposer | None:
    if head is None:
        return None
    from codespec.backends.heads.drafting import make_runner  # with torch
    from codespec.backends.torch.model import TorchModel
    from codespec.proposers.head import HeadProposer

    assert isinstance(target, TorchModel)
    return HeadProposer(make_runner(head, target), config.prefill_chunk or USUAL_CHUNK)


def _proposers(
    target: LanguageModel,
    drafter: LanguageModel | None,
    head: HeadProposer | None,
    config: EngineConfig,
    slots: int,
    window: int,
) -> list[Proposer]:
    parts: list[Proposer] = []
    if config.proposers in ("chain", "prediction"):
        parts.append(PredictionProposer())
    if config.proposers in ("chain", "suffix"):
        parts.append(SuffixProposer())
    if head is not None:
        parts.append(head)
    if drafter is not None:
        parts.append(
            DraftModel(drafter, window, slots, target=target.tokenizer, chunk=config.prefill_chunk or USUAL_CHUNK)
        )
    return parts
