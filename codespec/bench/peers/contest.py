"""What everybody in the contest is given and gives back. Knows ids, seconds and counts; knows no model.

All decode the same prompt ids to the target's own end of the text, or to the same number of tokens at most. Nobody
gains by stopping early: what counts is the time of a token that was written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

DTYPES = ("float32", "bfloat16")
GPU_DTYPES = ("bfloat16",)  # float32 reads twice the bytes, float16 as many: neither can be faster
TEMPERATURE = 0.8
PROMPTS, PROJECTS = "prompts", "projects"  # of a prompts file, of held-out code
KINDS = (PROMPTS, PROJECTS)

Model = TypeVar("Model")


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt: its number is its seed too, `kind` is one of KINDS, `ids` are the target's."""

    number: int
    kind: str
    prefix: str
    suffix: str
    path: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """Prompts that are decoded greedily or (temperature > 0) sampled: `at_once` of them at any time, or all (0). A text
    ends with an id of `ends`, or after `tokens`.
    """

    tasks: tuple[Task, ...]
    tokens: int
    temperature: float = 0.0
    at_once: int = 0
    ends: frozenset[int] = frozenset()

    @property
    def count(self) -> int:
        """How many run at once."""
        return min(self.at_once or len(self.tasks), len(self.tasks))

    def parts(self) -> list[Work]:
        """The same for those who begin together and end together: so many at a time, one after the other."""
        starts = range(0, len(self.tasks), max(1, self.count))
        return [replace(self, tasks=self.tasks[begin : begin + self.count]) for begin in starts]


@dataclass(frozen=True, slots=True)
class Variant:
    """How one contestant may be run: number formats, threads, and one setting of its own by its place in a list."""

    dtype: str
    drafter_dtype: str = ""
    threads: int = 1
    option: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Played:
    """One round: who drafted how many of the target's tokens, how many held, and how many units of its own it took."""

    source: str
    drafted: int
    accepted: int
    units: int


@dataclass(slots=True)
class PlayedStep:
    """One step: its sequences' mean length in tokens, and their rounds."""

    context: float
    rounds: list[Played] = field(default_factory=list)


@dataclass(slots=True)
class Answer:
    """What came of some work. `first_seconds` of all went into reading prompts and writing their first tokens, or were
    steps with fewer texts than may run at once (`first_tokens` were written there, of all); the rest is decoding.
    Rounds, drafts and `split` (seconds by part) are decoding's; `steps` are its steps where the contestant knows them.
    """

    ids: list[tuple[int, ...]]
    seconds: float
    first_seconds: float
    first_tokens: int
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    split: dict[str, float] = field(default_factory=dict)
    steps: list[PlayedStep] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens decoded behind the first ones."""
        return sum(len(ids) for ids in self.ids) - self.first_tokens

    @property
    def pace(self) -> float:
        """Seconds a decoded token; a token of the whole where the first round brought all."""
        if not self.tokens:
            return self.seconds / self.first_tokens
        return (self.seconds - self.first_seconds) / self.tokens

    def add(self, other: Answer) -> None:
        """Appends the answer to other work, done after this."""
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
    """A contestant can't do some work, for the reason given; it gets a row that says so."""


class Contestant(Protocol):
    """One row of the comparison.

    plain      whether it decodes without guessing
    batched    whether it takes several prompts at once; else it takes part where one is decoded
    keyed      whether a sampled text is the same whatever was guessed, so that it can be compared
    reference  the family whose plain contestant's texts it is compared with; "" for none
    """

    name: str
    family: str
    plain: bool
    batched: bool
    keyed: bool
    reference: str

    def variants(self) -> Sequence[Variant]:
        """Every way to run it that may be the fastest."""
        ...

    def begin(self) -> None:
        """Forgets what earlier work taught it."""
        ...

    def answer(self, work: Work, variant: Variant) -> Answer:
        """Does the work. Raises PeerError where it can't."""
        ...

    def facts(self, variant: Variant) -> dict[str, Any]:
        """What it is set to, as JSON values."""
        ...


class Family(Protocol):
    """Contestants around the same loaded models; `absent` are those that can't take part, with the reason."""

    name: str
    contestants: Sequence[Contestant]
    absent: Mapping[str, str]

    def keep(self, variants: Collection[Variant]) -> None:
        """Only these are wanted from here on."""
        ...


class Stable(Generic[Model]):
    """Loaded models by what distinguishes them, each loaded when it is first asked for."""

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
    """Number formats that may be the fastest on a device."""
    return DTYPES if device == "cpu" else GPU_DTYPES


def thread_counts(device: str = "cpu") -> tuple[int, ...]:
    """One thread, and two where there are two cores to run on; beside a GPU they compute nothing."""
    return (1, 2) if device == "cpu" and len(os.sched_getaffinity(0)) > 1 else (1,)


def cut_at_end(ids: Sequence[int], ends: Collection[int]) -> tuple[int, ...]:
    """The ids up to the first that ends a text."""
    place = next((n for n, token in enumerate(ids) if token in ends), len(ids))
    return tuple(ids[: place + 1])


def in_turn(parts: Sequence[Work], answer: Callable[[Work], Answer]) -> Answer:
    """Parts of some work after one another."""
    whole = answer(parts[0])
    for part in parts[1:]:
        whole.add(answer(part))
    return whole
