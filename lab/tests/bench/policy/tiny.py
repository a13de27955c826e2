"""A tiny pair, recordings of it, and real engines around it. Contains no checks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from codespec_lab.bench.pair import Pair
from codespec_lab.bench.policy.recording import BATCH, Recording, record
from codespec_lab.bench.policy.replay import ReplayedStep, replay
from codespec_lab.bench.sites import Site

from codespec.api.types import RoundEvent
from codespec.backends.torch.model import TorchModel
from codespec.engine.engine import Engine
from codespec.speculation.policy import DraftPolicy
from tests.kin import cousin, sibling
from tests.pairs import model, prompts

CONTEXT, TOKENS = 1024, 28
KINDS = ("bytes", "ids")  # drafts are passed as text to another vocabulary, or as shared ids
Rounds = list[tuple[str, int, int]]


@cache
def pair(kind: str) -> Pair:
    """A target and a drafter that is often right."""
    found = Pair(model("llama", "bytes"), drafter(kind), CONTEXT, 0)
    allocate(found)
    return found


def drafter(kind: str) -> TorchModel:
    """The target's weights with a little noise."""
    return cousin("llama", noise=0.03) if kind == "bytes" else sibling("llama", "bytes", noise=0.03)


def allocate(made: Pair) -> None:
    """Slots for BATCH sequences; other tests use the same models."""
    assert made.drafter is not None
    made.target.allocate(BATCH, CONTEXT)
    made.drafter.allocate(BATCH, CONTEXT + 1)


def sites() -> list[Site]:
    """Six sites in three projects; half of them repeat themselves, for the lookup."""
    paths = ("a.py", "b.go", "c.unknown")
    return [
        Site(
            prompts()[2 + n][: 60 + 30 * n] * (1 + n % 2),
            path=paths[n % 3],
            language="python",
            project=f"project {n % 3}",
        )
        for n in range(6)
    ]


@cache
def recordings(kind: str) -> tuple[Recording, ...]:
    """The recordings of the pair."""
    return tuple(record(pair(kind), sites(), TOKENS, lambda: None))


def replayed(kind: str, policy: DraftPolicy, batch: int = 1) -> list[ReplayedStep]:
    """All recordings under one policy."""
    return replay(pair(kind), [(policy, recordings(kind))], batch=batch)


def rounds_of(steps: Sequence[ReplayedStep], recording: Recording) -> Rounds:
    """The rounds of one recording."""
    rounds = [played for step in steps for played in step.rounds if played.recording is recording]
    return [(played.source, played.drafted, played.accepted) for played in rounds]


def real_rounds(kind: str, policy: DraftPolicy) -> list[Rounds]:
    """Return the real engine's rounds at the same sites, one after another; check that the texts are equal."""
    made, found = pair(kind), []
    allocate(made)
    for recording in recordings(kind):
        engine = Engine(made.target, made.proposers(), policy, context=CONTEXT, warmup=0)
        events = list(engine.stream(recording.request))
        assert events[-1].completion.token_ids == recording.ids  # type: ignore[union-attr]
        played = [event for event in events if isinstance(event, RoundEvent)]
        found.append([(event.source if event.drafted else "", event.drafted, event.accepted) for event in played])
    return found
