"""A replay matches the real engine: the same rounds, drafts, texts and forwards of the drafter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from unittest import mock

import pytest
from codespec_lab.bench.policy.heuristics import ConfidenceStopped, PlusTwoMinusOne
from codespec_lab.bench.policy.recording import BATCH, record
from codespec_lab.bench.policy.replay import ReplayedStep, ReplayTarget, replay
from codespec_lab.bench.sites import Site
from torch import Tensor

from codespec.backends.language_model import Rows
from codespec.backends.torch.model import TorchModel
from codespec.errors import MismatchError
from codespec.speculation.cost_policy import CostPolicy
from codespec.speculation.policy import DraftPolicy, Ds4Table, FixedLength
from lab.tests.bench.policy.tiny import KINDS, allocate, pair, real_rounds, recordings, replayed, rounds_of, sites
from tests.engine.test_planted_faults import correction_dropped
from tests.pairs import prompts
from tests.speculation.sequences import table

POLICIES: dict[str, Callable[[], DraftPolicy]] = {
    "off": lambda: FixedLength(0),
    "fixed:3": lambda: FixedLength(3),
    "fixed:16": lambda: FixedLength(16),
    "confidence:0.3": lambda: ConfidenceStopped(16, 0.3),
    "plus2minus1": lambda: PlusTwoMinusOne(16),
    "ds4-80": lambda: Ds4Table(16),
    "cost": lambda: CostPolicy(table(0.05, 0.02), ("suffix", "draft_model"), syntax=False),
    "cost+syntax": lambda: CostPolicy(table(0.02, 0.01), ("suffix", "draft_model")),
}


def accepted_by(steps: Sequence[ReplayedStep]) -> Counter[str]:
    """Accepted tokens by source."""
    found: Counter[str] = Counter()
    for played in (played for step in steps for played in step.rounds):
        found[played.source] += played.accepted
    return found


@pytest.mark.parametrize(
    ("kind", "name"), [*(("bytes", name) for name in POLICIES), ("ids", "fixed:3"), ("ids", "cost+syntax")]
)
def test_the_rounds_are_the_engines(kind: str, name: str) -> None:
    real = real_rounds(kind, POLICIES[name]())
    steps = replayed(kind, POLICIES[name]())
    assert [rounds_of(steps, recording) for recording in recordings(kind)] == real
    if name != "off":
        found = accepted_by(steps)
        assert {"suffix", "draft_model"} <= found.keys() and found.total() >= 20  # both have drafted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["fixed:3", "confidence:0.3", "ds4-80"])
def test_in_a_batch_each_text_has_the_rounds_it_has_alone(kind: str, name: str) -> None:
    """These policies depend on one text only."""
    alone, together = replayed(kind, POLICIES[name]()), replayed(kind, POLICIES[name](), BATCH)
    for recording in recordings(kind):
        assert rounds_of(alone, recording) == rounds_of(together, recording)
    assert len(together) < len(alone) and max(step.batch for step in together) == len(recordings(kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["fixed:3", "confidence:0.3", "cost+syntax"])
def test_the_drafters_forwards_are_the_models(kind: str, name: str) -> None:
    """Number of the drafter's forwards and their rows: the unread text first, then one row per unit."""
    steps = replayed(kind, POLICIES[name]())
    real, seen, drafter = TorchModel.forward, [], pair(kind).drafter

    def forward(self: TorchModel, batch: Sequence[Rows], cached: bool = True) -> Tensor:
        if self is drafter:
            seen.append((sum(len(rows.ids) for rows in batch), len(batch)))
        return real(self, batch, cached)

    with mock.patch.object(TorchModel, "forward", forward):
        real_rounds(kind, POLICIES[name]())
    assert [shape for step in steps for shape in step.forwards] == seen
    assert len(seen) > 50


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_counts_its_rows(kind: str) -> None:
    for step in replayed(kind, FixedLength(4), BATCH):
        assert step.rows == sum(played.drafted + 1 for played in step.rounds) and step.batch == len(step.rounds)
        assert all(played.committed <= played.accepted + 1 for played in step.rounds)


def test_another_text_than_the_recorded_one_ends_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a rejected token is committed, the rounds can't be priced."""
    correction_dropped(monkeypatch)
    with pytest.raises(MismatchError, match=r"rules out \(the replay of [abc]\.\w+"):
        replayed("bytes", FixedLength(4))


def test_a_text_that_begins_like_an_earlier_one_goes_on_from_there() -> None:
    """Two texts end in the same step, and the common beginning is copied from the slot that holds more of it."""
    first, second, third = prompts()[2], prompts()[3], prompts()[4]
    texts = (first[:90], second[:150], second[:60] + third[:60], first[:40] + third[:40])
    allocate(pair("bytes"))
    alike = record(
        pair("bytes"), [Site(text, path="a.py", language="python", project="p") for text in texts], 12, lambda: None
    )
    with mock.patch.object(ReplayTarget, "fork", autospec=True, side_effect=ReplayTarget.fork) as fork:
        together = replay(pair("bytes"), [(FixedLength(0), alike)], batch=2)
    assert fork.called
    alone = replay(pair("bytes"), [(FixedLength(0), alike)])
    assert all(rounds_of(together, recording) == rounds_of(alone, recording) for recording in alike)


def test_recorded_classes_are_the_trackers() -> None:
    """In a known language some tokens have a context class; every position with a possible draft has one."""
    for recording, site in zip(recordings("bytes"), sites(), strict=True):
        assert sorted(recording.contexts) == list(range(len(recording.ids) - 1))
        known = set(recording.contexts.values()) != {"unknown"}
        assert known == (not site.path.endswith("unknown"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_cut_is_what_the_target_agrees_with(kind: str) -> None:
    """`cuts` holds, for every shorter draft, the tokens that a fixed length would have accepted."""
    allocate(pair(kind))
    for recording in recordings(kind):
        for drafts in recording.drafts.values():
            for draft in drafts.values():
                assert draft.cuts[0] == 0 and max(draft.cuts) <= 16
                assert all(right <= cut for cut, right in enumerate(draft.cuts)) or draft.draft.ids is None
