"""What every contestant of `codespec bench decode` gets and returns. Knows ids, seconds and counts; knows no model.

All decode the same prompt ids up to the target's own end of the text or the same most tokens. Nobody gains by stopping
early: what counts is the time per written token.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from codespec_lab.bench.decode.tasks import Workload

FLOAT_DTYPES = ("float32", "bfloat16")
GPU_DTYPES = ("bfloat16",)  # float32 reads twice the bytes, float16 as many: neither can be faster

Model = TypeVar("Model")


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to run a contestant: number formats, threads, and the index of one setting of its own in a list."""

    dtype: str
    drafter_dtype: str = ""
    threads: int = 1
    option: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Round:
    """One round: the proposer, how many target tokens it drafted in how many units of its own, and how many of them
    were accepted.
    """

    source: str
    drafted: int
    accepted: int
    units: int


@dataclass(slots=True)
class StepRounds:
    """One step: its sequences' mean length in tokens, and their rounds."""

    context: float
    rounds: list[Round] = field(default_factory=list)


@dataclass(slots=True)
class Answer:
    """The answer to a workload. `first_seconds` went into reading prompts and writing their first tokens, and into
    steps with fewer texts than may run at once (`first_tokens` were written there); the rest is decoding. Rounds,
    drafts, `split` (seconds by part) and `steps` (where the contestant knows them) are those of decoding.
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
        """Tokens decoded after the first ones."""
        return sum(len(ids) for ids in self.ids) - self.first_tokens

    @property
    def pace(self) -> float:
        """Seconds per decoded token, or per token of all where the first round wrote the whole text."""
        if not self.tokens:
            return self.seconds / self.first_tokens
        return (self.seconds - self.first_seconds) / self.tokens

    def add(self, other: Answer) -> None:
        """Appends the answer to a later workload."""
        self.ids += other.ids
        self.seconds += other.seconds
        self.first_seconds += other.first_seconds
        self.first_tokens += other.first_tokens
        self.rounds += other.rounds
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.split = {name: self.split.get(name, 0.0) + other.split[name] for name in other.split}
        self.steps += other.steps


class PeerError(Exception):
    """A contestant can't run a workload, for the reason given; its row in the report says so."""


class Contestant(Protocol):
    """One row of the comparison.

    plain      whether it decodes without drafts
    batched    whether it takes several prompts at once; if not, it takes part only where one runs at a time
    keyed      whether a sampled text is the same whatever was drafted, so that it can be compared
    reference  the family whose plain contestant's texts it is compared with: its own, or codespec for a plain one
    """

    name: str
    family: str
    plain: bool
    batched: bool
    keyed: bool
    reference: str

    def variants(self) -> Sequence[Variant]:
        """The variants that may be the fastest."""
        ...

    def begin(self) -> None:
        """Forgets what it has learned."""
        ...

    def answer(self, work: Workload, variant: Variant) -> Answer:
        """Decodes a workload. Raises PeerError where it can't."""
        ...

    def facts(self, variant: Variant) -> dict[str, Any]:
        """Its settings, as JSON values."""
        ...


class Family(Protocol):
    """Contestants that share loaded models; `absent` has those that can't take part, with the reason."""

    name: str
    contestants: Sequence[Contestant]
    absent: Mapping[str, str]

    def keep(self, variants: Collection[Variant]) -> None:
        """Drops what only other variants need."""
        ...

    def close(self) -> None:
        """Ends the processes that it started."""
        ...


class ModelCache(Generic[Model]):
    """Loaded models by a key; each is loaded when it is first needed."""

    def __init__(self, load: Callable[..., Model]) -> None:
        self._load = load
        self._held: dict[tuple[Any, ...], Model] = {}

    def get(self, *key: Any) -> Model:
        """The model of that key."""
        if key not in self._held:
            self._held[key] = self._load(*key)
        return self._held[key]

    def keep(self, keys: Collection[tuple[Any, ...]]) -> None:
        """Drops all others."""
        for key in set(self._held) - set(keys):
            del self._held[key]


def formats(device: str) -> tuple[str, ...]:
    """The float formats that may be the fastest on a device."""
    return FLOAT_DTYPES if device == "cpu" else GPU_DTYPES


def thread_counts(device: str = "cpu") -> tuple[int, ...]:
    """The thread counts to try: one, and on a CPU with two cores or more two."""
    return (1, 2) if device == "cpu" and len(os.sched_getaffinity(0)) > 1 else (1,)


def cut_at_end(ids: Sequence[int], ends: Collection[int]) -> tuple[int, ...]:
    """The ids up to and including the first that ends a text."""
    end = next((n for n, token in enumerate(ids) if token in ends), len(ids))
    return tuple(ids[: end + 1])


def in_turn(parts: Sequence[Workload], answer: Callable[[Workload], Answer]) -> Answer:
    """One answer to all parts, decoded one after another."""
    whole = answer(parts[0])
    for part in parts[1:]:
        whole.add(answer(part))
    return whole
