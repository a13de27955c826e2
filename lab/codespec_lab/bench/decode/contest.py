"""The interface of the contestants of `codespec bench decode`: workloads in, answers (ids, seconds and counts) out.

All decode the same prompt ids until the target's end of text or the same token limit. The score is the time per
written token, so stopping early gains nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from codespec_lab.bench.decode.tasks import Workload

FLOAT_DTYPES = ("float32", "bfloat16")
GPU_DTYPES = ("bfloat16",)  # float32 reads twice the bytes, float16 the same number: neither can be faster

Model = TypeVar("Model")


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
    `first_tokens` tokens. The rest is decoding. Rounds, drafts, `split` (seconds by part) and `steps` (if the
    contestant records them) cover decoding only.
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
        self.split = {name: self.split.get(name, 0.0) + other.split[name] for name in other.split}
        self.steps += other.steps


class PeerError(Exception):
    """Raised by a contestant that can't run a workload; the report shows the message in its row."""


class Contestant(Protocol):
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
    keyed: bool
    reference: str

    def variants(self) -> Sequence[Variant]:
        """Return the variants that may be the fastest."""
        ...

    def begin(self) -> None:
        """Forget everything learned."""
        ...

    def answer(self, work: Workload, variant: Variant) -> Answer:
        """Decode a workload. Raise PeerError if that fails."""
        ...

    def facts(self, variant: Variant) -> dict[str, Any]:
        """Return the contestant's settings as JSON values."""
        ...


class Family(Protocol):
    """Contestants that share loaded models; `absent` maps those that can't take part to the reason."""

    name: str
    contestants: Sequence[Contestant]
    absent: Mapping[str, str]

    def keep(self, variants: Collection[Variant]) -> None:
        """Free everything that only other variants need."""
        ...

    def close(self) -> None:
        """Stop the processes that the family started."""
        ...


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


def in_turn(parts: Sequence[Workload], answer: Callable[[Workload], Answer]) -> Answer:
    """Decode all parts one after another and return one answer."""
    whole = answer(parts[0])
    for part in parts[1:]:
        whole.add(answer(part))
    return whole
