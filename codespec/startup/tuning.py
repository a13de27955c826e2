"""Choose the CPU threads, draft-length policy, prefill chunk, batch size and prompt budget by measurement.

Long drafts, large chunks and full batches pay off if a product of 32 rows costs about as much as one row (AMX, GPUs),
but not if arithmetic dominates. The choices depend on measurements, not on the processor's name.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from codespec.api.config import EngineConfig, split_policy
from codespec.api.types import PREDICTION
from codespec.backends.language_model import LanguageModel
from codespec.files import Kept, digest
from codespec.proposers.draft_model import DraftModel
from codespec.speculation.acceptance_model import Learned
from codespec.speculation.cost_model import CostTable
from codespec.speculation.cost_policy import CostPolicy
from codespec.speculation.policy import DraftPolicy, Ds4Table, FixedLength
from codespec.startup.timing import (
    SHORT,
    ForwardShape,
    empty_slots,
    kept_file,
    kept_table,
    price,
    time_forward,
    time_rows,
    turns,
)
from codespec.store.machine import processor

if TYPE_CHECKING:
    from codespec.proposers.head import HeadProposer

USUAL_BATCH, USUAL_CHUNK, USUAL_DRAFT = 8, 256, 16  # defaults without measurements
MAX_BATCH, MAX_CHUNK, MIN_CHUNK = 16, 512, 64
BATCH_MB = 512  # KV cache limit for a batch larger than USUAL_BATCH
MAX_STALL_S = 0.2  # maximum seconds that a prefill chunk may delay other streams
PAYS = 0.8  # the batch is doubled if that reduces the cost per token to this share
FREE = 1.5  # a forward pass of several rows is cheap if it takes at most this multiple of one row's time
THREADS_VERSION = 1  # of the measurement; results of other versions are ignored
TURN = 5  # consecutive forward passes with one thread count
CLEARLY = 0.9  # a thread count is clearly faster if it takes less than this share of the time
READING_VERSION = 1  # of the measurement; results of other versions are ignored
FEW, MANY, FAR = 64, 256, 1024  # tokens: timed prefill chunk on slow and on fast machines, and context before it
FAST_PREFILL_S = 0.05  # a machine is fast if it prefills FEW tokens in fewer seconds
TRIES, MAX_TUNING_S = 5, 1.5  # maximum number of runs, and seconds after which no run starts
ROUNDS = 8  # forward passes of a completion after the full prefill chunks: a partial chunk, and the rounds of a line
DRAFTER = 0.1  # share of the time to first completion that the drafter's prefill takes
MIN_PROMPT = 256  # smallest prompt budget in tokens
STEP = 32  # granularity of the prompt budget in tokens
Seconds = Callable[[float, int, float], float]  # time of a target's forward pass by rows, batch and context
_CHOSEN: list[int] = []  # the thread count of this process, once it is chosen


def choose_batch(config: EngineConfig, seconds: Seconds, slots: int) -> int:
    """Return the maximum batch size: the configured size, else one based on measured costs, else the default."""
    batch = config.max_batch or min(USUAL_BATCH, slots)
    while not config.max_batch and seconds(1, 1, SHORT) and 2 * batch <= min(MAX_BATCH, slots):
        one, twice = (seconds(size, size, SHORT) / size for size in (batch, 2 * batch))
        if twice > PAYS * one:
            break
        batch *= 2
    return batch


def choose_chunk(config: EngineConfig, seconds: Seconds) -> int:
    """Return the prefill chunk in tokens: the configured size, else one based on measured costs, else the default."""
    if config.prefill_chunk or not seconds(1, 1, SHORT):
        return config.prefill_chunk or USUAL_CHUNK
    chunk = MAX_CHUNK
    while chunk > MIN_CHUNK and seconds(chunk, 1, 0) > MAX_STALL_S:
        chunk //= 2
    return chunk


def longest_draft(most: int, costs: CostTable | None) -> int:
    """Return the maximum draft length, which exceeds USUAL_DRAFT only if verifying `most` draft tokens is cheap."""
    if costs is not None and costs.target.seconds(most + 1) <= FREE * costs.target.seconds(1):
        return most
    return min(most, USUAL_DRAFT)


def largest_batch(config: EngineConfig, slot_bytes: int) -> int:
    """Return the configured batch size, or the largest batch size that memory allows, given the bytes of a slot."""
    if config.max_batch:
        return config.max_batch
    room = (config.cache_mb or BATCH_MB) * 2**20
    return MAX_BATCH if MAX_BATCH * slot_bytes <= room else USUAL_BATCH


def choose_policy(
    config: EngineConfig,
    sources: Sequence[str],
    target: LanguageModel,
    drafter: LanguageModel | None,
    notes: MutableSequence[str],
    head: HeadProposer | None = None,
) -> DraftPolicy:
    """Return the configured draft-length policy for `sources`, possibly after timing the models in free cache slots."""
    name, number = split_policy(config.policy)
    longest = longest_draft(config.draft_tokens, None)
    if name.startswith("cost"):
        return _cost_policy(config, sources, target, drafter, notes, head) if sources else FixedLength(0)
    if name == "fixed":
        return FixedLength(longest if number is None else number)
    return Ds4Table(longest)


def _cost_policy(
    config: EngineConfig,
    sources: Sequence[str],
    target: LanguageModel,
    drafter: LanguageModel | None,
    notes: MutableSequence[str],
    head: HeadProposer | None,
) -> CostPolicy:
    drafters = {DraftModel.name: drafter} if drafter is not None and DraftModel.name in sources else {}
    heads = {head.name: head.runner} if head is not None else {}
    models = [model for model in (target, drafter) if model is not None]
    facts = [(m.spec.name, m.spec.architecture, m.spec.vocab_size, m.tokenizer.fingerprint) for m in models]
    shapes = [repr(runner.config) for runner in heads.values()]
    learned = Learned(digest([*facts, *shapes]), notes) if config.learn else None
    costs = price(target, drafters, notes, heads)
    table = kept_table(target, drafters, heads)
    return CostPolicy(
        costs,
        sources,
        tokens=longest_draft(config.draft_tokens, costs),
        # A prediction either stays right for many tokens or soon proves wrong.
        longer={PREDICTION: 2 * config.draft_tokens},
        syntax=config.policy == "cost+syntax",
        acceptance=learned.load() if learned else None,
        keep=learned.save if learned else None,
        running=True,
        keep_costs=partial(table.save, notes=notes) if config.learn else None,
    )


def find_threads(model: LanguageModel, notes: MutableSequence[str]) -> int:
    """Return the process-wide number of CPU threads, saved or measured for the first model. Its slots must be free."""
    if not _CHOSEN:
        most = _max_threads()
        _CHOSEN.append(1 if most == 1 else _kept_threads(model, most).get(lambda: choose_threads(model, most), notes))
    return _CHOSEN[0]


def _kept_threads(model: LanguageModel, most: int) -> Kept[int]:
    def parse(content: Mapping[str, Any]) -> int:
        if (threads := int(content["threads"])) not in range(1, most + 1):
            raise ValueError(f"the number of threads is {threads}, but must be between 1 and {most}")
        return threads

    file = kept_file("threads", THREADS_VERSION, most, model.facts)
    return Kept(file, "number of threads", parse, lambda threads: {"threads": threads})


def _max_threads() -> int:
    """Return the lower of the number of physical cores and OMP_NUM_THREADS, which is often set on shared machines."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(processor().cores, int(limit)) if limit.isdecimal() and int(limit) else processor().cores


def choose_threads(model: LanguageModel, most: int, budget: float = 1.0) -> int:
    """Try the thread counts 1, 2, 4, …, `most`, and return the last that clearly beats the best count before it.

    Counts are compared by the 95th percentile of the time of a small verification, because several threads on shared
    cores often stall. The measurement takes about `budget` seconds. Afterwards, all cache slots are empty and the model
    uses one thread.
    """
    counts = sorted({*(1 << power for power in range(most.bit_length())), most})
    times: dict[int, list[float]] = {count: [] for count in counts}
    rows = min(8, model.spec.max_length - 1)
    verify: ForwardShape = (rows, 1, min(SHORT, model.spec.max_length - rows))
    began = time.perf_counter()
    while not times[most] or time.perf_counter() - began < budget:
        for threads, found in times.items():
            model.use_threads(threads)
            time_forward(model, verify)  # the first forward pass wakes the threads
            found += [time_forward(model, verify) for _ in range(TURN)]
    model.use_threads(1)
    empty_slots(model)
    late = {threads: sorted(found)[int(0.95 * len(found))] for threads, found in times.items()}
    best = 1
    for threads in counts:
        if late[threads] < CLEARLY * late[best]:
            best = threads
    return best


@dataclass(frozen=True, slots=True)
class ReadingSpeed:
    """Measured prefill times in seconds."""

    rows: int  # tokens of each timed prefill
    near: float  # at the start of a text
    far: float  # after `distance` other tokens
    distance: int
    one: float  # of a forward pass with one row

    def seconds(self, tokens: int) -> float:
        """Return the seconds to prefill this many uncached tokens. A token's cost grows with its position."""
        slope = max(0.0, self.far - self.near) / self.distance
        return tokens / self.rows * (self.near + slope * tokens / 2)

    def answer(self, tokens: int) -> float:
        """Return the seconds to the first completion for a prompt of this length, without the drafter's prefill."""
        return self.seconds(tokens) + ROUNDS * self.one

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ReadingSpeed:
        """Parse the output of `dataclasses.asdict`. Raises ValueError, TypeError or KeyError for invalid values."""
        seconds = [float(values[name]) for name in ("near", "far", "one")]
        rows, distance = int(values["rows"]), int(values["distance"])
        sound = all(math.isfinite(one) and one >= 0.0 for one in seconds)
        if not 1 <= min(rows, distance) <= max(rows, distance) < 1 << 31 or not sound:
            raise ValueError("a number of rows or a time is out of range")
        return cls(rows, seconds[0], seconds[1], distance, seconds[2])


@lru_cache(64)
def prompt_budget(reading: ReadingSpeed, first_answer_ms: float, context: int) -> int:
    """Return the longest prompt, in tokens, that is answered in `first_answer_ms` (0: any), at most `context`."""
    if not first_answer_ms:
        return context
    time, tokens = first_answer_ms / 1000 * (1.0 - DRAFTER), MIN_PROMPT
    while tokens < context and reading.answer(tokens + STEP) <= time:
        tokens += STEP
    return min(tokens, context)


def find_reading(model: LanguageModel, notes: MutableSequence[str]) -> ReadingSpeed:
    """Return the model's saved reading speed, or measure and save it. Cache slot 0 must be free."""
    return _kept_reading(model).get(lambda: measure_reading(model), notes)


def measure_again(model: LanguageModel, notes: MutableSequence[str]) -> ReadingSpeed:
    """Measure the reading speed again and save the minimum of old and new times, in case the machine was busy before.

    The speed is not measured again at each startup, because a different result would change the prompt budget and thus
    the generated text. Cache slot 0 must be free.
    """
    kept, reading = _kept_reading(model), measure_reading(model)
    before = kept.load(notes)
    if before is not None and (before.rows, before.distance) == (reading.rows, reading.distance):
        times = {name: min(getattr(before, name), getattr(reading, name)) for name in ("near", "far", "one")}
        reading = replace(reading, **times)
    kept.save(reading, notes)
    return reading


def _kept_reading(model: LanguageModel) -> Kept[ReadingSpeed]:
    """Return the file with the model's reading speed, which does not depend on the number and size of slots."""
    file = kept_file("reading", READING_VERSION, model.facts, model.call_facts)
    return Kept(file, "reading speed", ReadingSpeed.from_dict, asdict)


def measure_reading(model: LanguageModel) -> ReadingSpeed:
    """Measure the reading speed in about MAX_TUNING_S seconds, or in one run if a run takes longer. Empties slot 0."""
    assert model.cache is not None
    time_rows(model, [FEW], 0, keep=1)  # warm-up: compile kernels, start threads
    rows = MANY if time_rows(model, [FEW], 0, keep=1) < FAST_PREFILL_S else FEW  # both fit in a cache block
    distance = min(FAR, model.cache.capacity - rows)
    shapes = ((rows, 0), (rows, distance), (1, distance))
    visits = [[time_rows(model, [count], start, keep=1) for count, start in shapes] for _ in turns(MAX_TUNING_S, TRIES)]
    model.rollback(0, 0)
    near, far, one = map(min, zip(*visits, strict=True))
    return ReadingSpeed(rows, near, far, distance, one)
