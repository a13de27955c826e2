"""Acceptance counters learn, borrow and forget; probabilities stay between 0 and 1."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.speculation.acceptance_model import POSITIONS, AcceptanceModel

SOURCES = st.sampled_from(["suffix", "draft_model", "another"])
PLACES = st.sampled_from(["", "comment", "closing", "unknown"])
VERDICTS = st.tuples(SOURCES, PLACES, st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(0, 20))


def taught(lessons: list[tuple[str, str, list[float], int]]) -> AcceptanceModel:
    survival = AcceptanceModel()
    for source, place, confidences, accepted in lessons:
        survival.learn(source, place, confidences, min(accepted, len(confidences)))
    return survival


@given(st.lists(VERDICTS, max_size=12), SOURCES, PLACES, st.lists(st.floats(0, 1), min_size=1))
def test_chances_are_chances_and_never_rise(
    lessons: list[tuple[str, str, list[float], int]],
    source: str,
    place: str,
    confidences: list[float],
) -> None:
    survival = taught(lessons)
    for given_confidences in (None, confidences):
        found = survival.survival(source, place, 20, given_confidences)
        assert len(found) == 20 and all(0.0 < chance < 1.0 for chance in found[:1])
        assert all(0.0 <= later <= earlier for earlier, later in itertools.pairwise(found))
    assert all(0.0 < survival.rate(source, place, position) < 1.0 for position in range(20))


@given(st.lists(VERDICTS, max_size=8))
def test_survives_being_written_and_read(
    lessons: list[tuple[str, str, list[float], int]],
) -> None:
    survival = taught(lessons)
    read = AcceptanceModel.from_dict(json.loads(json.dumps(survival.as_dict())))
    assert read.counters == survival.counters and read.by_confidence == survival.by_confidence


@pytest.mark.parametrize(
    "fault",
    [
        {"counters": [["suffix", "", [1.0] * POSITIONS, [0.5] * POSITIONS]]},
        {"counters": [["suffix", "", [1.0], [2.0]]]},
        {"counters": [["suffix"]]},
        {"by_confidence": [["suffix", [0.0] * POSITIONS, [float("nan")] * POSITIONS]]},
        {"by_confidence": [["suffix", "one"]]},
        {"by_confidence": None},
    ],
)
def test_what_is_no_survival_is_refused(fault: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        AcceptanceModel.from_dict({**AcceptanceModel().as_dict(), **fault})


def test_nothing_is_assumed_of_a_pair_before_it_ran() -> None:
    """One pair's counts were wrong by factors for another; a client's own prediction is different."""
    fresh = AcceptanceModel()
    assert {fresh.rate(source, place, 0) for source in ("suffix", "draft_model") for place in ("", "closing")} == {0.5}
    assert fresh.rate("prediction", "closing", 0) == pytest.approx(0.8)


def test_a_context_learns_for_itself_first_and_a_little_for_the_others() -> None:
    survival, fresh = AcceptanceModel(), AcceptanceModel()
    for _ in range(60):
        survival.learn("draft_model", "comment", [0.5], 0)
    there, elsewhere, before = (
        model.rate("draft_model", place, 0)
        for model, place in ((survival, "comment"), (survival, "closing"), (fresh, "closing"))
    )
    assert there < elsewhere < before and there < 0.1


def test_what_is_long_past_is_forgotten() -> None:
    survival, place = AcceptanceModel(), "statement"
    for _ in range(5000):
        survival.learn("suffix", place, [0.5], 1)
    for _ in range(600):
        survival.learn("suffix", place, [0.5], 0)
    assert survival.rate("suffix", place, 0) < 0.1
    assert survival.seen("suffix", place) < 250


@pytest.mark.parametrize("verdicts", [(0, 0), (0, 1), (1, 1)])
def test_confidence_counts_by_what_such_tokens_were(verdicts: tuple[int, int]) -> None:
    """Of a drafter's tokens, those of confidence 0.95 get these verdicts in turn; those of 0.6 are never right."""
    survival = AcceptanceModel()
    for turn in range(2000):
        survival.learn("draft_model", "", [0.95], verdicts[turn % 2])
        survival.learn("draft_model", "", [0.6], 0)
    sure, unsure = (survival.survival("draft_model", "", 1, [c])[0] for c in (0.95, 0.6))
    assert sure == pytest.approx(sum(verdicts) / 2, abs=0.1) and unsure < 0.1


def test_a_text_written_again_is_believed_within_two_drafts() -> None:
    """Lookups of short matches failed a hundred times; the first long ones are right."""
    survival = AcceptanceModel()
    for _ in range(100):
        survival.learn("suffix", "", [0.5] * 4, 0)
    before = survival.survival("suffix", "", 16, [0.95] * 16)
    for _ in range(2):
        survival.learn("suffix", "", [0.95] * 16, 16)
    after = survival.survival("suffix", "", 16, [0.95] * 16)
    assert before[0] < 0.5 and after[15] > 0.5


def test_only_what_was_judged_is_counted() -> None:
    survival = AcceptanceModel()
    survival.learn("suffix", "", [0.9] * 5, 2)
    counter = survival.counters["suffix", ""]
    assert counter.seen[:5] == [1.0, 1.0, 1.0, 0.0, 0.0] and counter.right[:5] == [1.0, 1.0, 0.0, 0.0, 0.0]
