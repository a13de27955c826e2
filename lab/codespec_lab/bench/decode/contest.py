"""The tasks of `codespec bench decode` and the interface of its contestants: workloads in, answers out.

In a cell (sampling, concurrency) with one prompt at a time each prompt is a workload. In other cells a workload has
more prompts than run at once: when a text ends, the next prompt begins, so that the batch stays full. All contestants
decode the same prompt ids until the target's end of text or the same token limit. The score is the time per written
token, so stopping early gains nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, TypeVar

from codespec.engine.admission import Admission
from codespec_lab.bench.settings import SAMPLINGS
from codespec_lab.bench.sites import Site

FILLS = 2  # prompts per slot of a batch
FLOAT_DTYPES = ("float32", "bfloat16")
GPU_DTYPES = ("bfloat16",)  # float32 reads twice the bytes, float16 the same number: neither can be faster

Model = TypeVar("Model")


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt: its number (also its seed), its site, and the target's ids."""

    number: int
    site: Site
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Tasks to decode greedily or (temperature > 0) sampled, `at_once` at a time, or all together (0). A text ends with
    an id of `ends`, or after `tokens` tokens.
    """

    tasks: tuple[Task, ...]
    tokens: int
    temperature: float = 0.0
    at_once: int = 0
    ends: frozenset[int] = frozenset()

    @property
    def count(self) -> int:
        """Return the number of tasks that run at once."""
        return min(self.at_once or len(self.tasks), len(self.tasks))

    @property
    def kind(self) -> str:
        """Return the kind of all its sites; "" if they are mixed."""
        kinds = {task.site.kind for task in self.tasks}
        return kinds.pop() if len(kinds) == 1 else ""

    def parts(self) -> list[Workload]:
        """Split the workload into consecutive batches whose tasks begin together."""
        starts = range(0, len(self.tasks), max(1, self.count))
        return [replace(self, tasks=self.tasks[begin : begin + self.count]) for begin in starts]


@dataclass(frozen=True, slots=True)
class Cell:
    """One comparison: sampling and concurrency."""

    sampling: str
    concurrency: int

    @property
    def size(self) -> int:
        """Return the number of prompts of each of its workloads."""
        return self.concurrency * (FILLS if self.concurrency > 1 else 1)

    def workloads(self, tasks: Sequence[Task], limit: int, tokens: int, ends: frozenset[int]) -> list[Workload]:
        """Split the first `limit` tasks, or as many as one workload needs; leftover tasks are dropped."""
        several = tasks[: max(limit, self.size)]
        starts = range(0, len(several) - self.size + 1, self.size)
        temperature = SAMPLINGS[self.sampling]
        return [
            Workload(tuple(several[begin : begin + self.size]), tokens, temperature, self.concurrency, ends)
            for begin in starts
        ]


def make_tasks(admission: Admission, sites: Sequence[Site], tokens: int) -> tuple[list[Task], frozenset[int]]:
    """Return the sites as the target's ids with room for `tokens` more, and the ids that end a text: those of
    transformers' `generate`, and all control tokens if a prompt has text on both sides.
    """
    tasks, ends = [], set[int]()
    for number, site in enumerate(sites):
        sequence = admission.admit(site.request(tokens))[0]
        tasks.append(Task(number, site, tuple(sequence.prompt_ids)))
        ends |= sequence.eos_ids
    return tasks, frozenset(ends)


def count_kinds(tasks: Sequence[Task]) -> Mapping[str, int]:
    """Return the number of tasks of each kind of site."""
    kinds = dict.fromkeys(task.site.kind for task in tasks)
    return {kind: sum(task.site.kind == kind for task in tasks) for kind in kinds}


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to run a contestant: number formats, threads, and `option`, an index into the contestant's own settings."""

    dtype: str
    drafter_dtype: str = ""
    threads: int = 1
    option: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Round:
    """One round: the proposer, the number of target tokens drafted and accepted, and the draft's length in the
    proposer's own units.
    """

    source: str
    drafted: int
    accepted: int
    units: int


@dataclass(slots=True)
class StepRounds:
    """One step: the mean length of its sequences in tokens, and their rounds."""

    context: float
    rounds: list[Round] = field(default_factory=list)


@dataclass(slots=True)
class Answer:
    """The answer to a workload.

    `first_seconds` covers prefill with the first tokens, and steps with fewer texts than may run at once; these wrote
    `first_tokens` tokens. The rest is decoding. Rounds, drafts, `split` (codespec's seconds by part) and
    `steps` (codespec's) cover decoding only.
    """

    ids: list[tuple[int, ...]]
    seconds: float
    first_seconds: float
    first_tokens: int
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    split: dict[str, float] = field(default_factory=dict)
    steps: list[StepRounds] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Return the number of tokens decoded after the first ones."""
        return sum(len(ids) for ids in self.ids) - self.first_tokens

    @property
    def pace(self) -> float:
        """Return the seconds per decoded token, or per token overall if the first round wrote the whole text."""
        if not self.tokens:
            return self.seconds / self.first_tokens
        return (self.seconds - self.first_seconds) / self.tokens

    def add(self, other: Answer) -> None:
        """Append the answer to a later workload."""
        self.ids += other.ids
        self.seconds += other.seconds
        self.first_seconds += other.first_seconds
        self.first_tokens += other.first_tokens
        self.rounds += other.rounds
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.split = {name: self.split.get(name, 0.0) + seconds for name, seconds in other.split.items()}
        self.steps += other.steps


class PeerError(Exception):
    """Raised by a contestant that can't run a workload; the report shows the message in its row."""


class Contestant:
    """One row of the comparison.

    plain      whether it decodes without drafts
    batched    whether it decodes several prompts at once; if not, it takes part only at a concurrency of 1
    keyed      whether a sampled text does not depend on the drafts, so that it can be compared
    reference  the family whose plain contestant wrote the texts to compare with: its own, or codespec for a plain one
    """

    name: str
    family: str
    plain: bool
    batched: bool
    reference: str
    keyed = False

    def variants(self) -> Sequence[Variant]:
        """Return the variants that may be the fastest."""
        raise NotImplementedError

    def begin(self) -> None:
        """Forget everything learned; by default nothing is learned."""

    def answer(self, work: Workload, variant: Variant) -> Answer:
        """Decode a workload. Raise PeerError if that fails."""
        raise NotImplementedError

    def facts(self, variant: Variant) -> dict[str, Any]:
        """Return the contestant's settings as JSON values."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop the processes that the contestant started; by default there is none."""


class Family:
    """Contestants that share loaded models; `absent` maps those that can't take part to the reason."""

    name: str
    contestants: Sequence[Contestant]
    absent: Mapping[str, str]

    def keep(self, variants: Collection[Variant]) -> None:
        """Free everything that only other variants need; by default there is no such thing."""

    def close(self) -> None:
        """Stop the contestants' processes."""
        for contestant in self.contestants:
            contestant.close()


class ModelCache(Generic[Model]):
    """Loaded models by key; each is loaded on first use."""

    def __init__(self, load: Callable[..., Model]) -> None:
        self._load = load
        self._held: dict[tuple[Any, ...], Model] = {}

    def get(self, *key: Any) -> Model:
        """Return the model of `key`."""
        if key not in self._held:
            self._held[key] = self._load(*key)
        return self._held[key]

    def keep(self, keys: Collection[tuple[Any, ...]]) -> None:
        """Drop all models except those of `keys`."""
        for key in set(self._held) - set(keys):
            del self._held[key]


def formats(device: str) -> tuple[str, ...]:
    """Return the float formats that may be the fastest on a device."""
    return FLOAT_DTYPES if device == "cpu" else GPU_DTYPES


def thread_counts(device: str = "cpu") -> tuple[int, ...]:
    """Return the thread counts to try: 1, and also 2 on a CPU with two or more cores."""
    return (1, 2) if device == "cpu" and len(os.sched_getaffinity(0)) > 1 else (1,)


def cut_at_end(ids: Sequence[int], ends: Collection[int]) -> tuple[int, ...]:
    """Return the ids up to and including the first end-of-text id."""
    end = next((n for n, token in enumerate(ids) if token in ends), len(ids))
    return tuple(ids[: end + 1])


def join_answers(parts: Sequence[Workload], answer: Callable[[Workload], Answer]) -> Answer:
    """Decode all parts one after another and return one answer."""
    whole = answer(parts[0])
    for part in parts[1:]:
        whole.add(answer(part))
    return whole
