"""Figures of replayed policies, from tallies of known rounds."""

from __future__ import annotations

import pytest
from codespec_lab.bench.policy.summary import Score, Tally, first_rounds


def test_first_rounds_are_compared_by_tokens_a_second() -> None:
    """A round that takes twice as long must yield twice the tokens to count as equal."""
    short = Score(first=[Tally(seconds=1.0, committed=1), Tally(seconds=1.0, committed=3)])
    long = Score(first=[Tally(seconds=2.0, committed=2), Tally(seconds=2.0, committed=10)])
    found = first_rounds(long, short)
    assert found["ratio"] == pytest.approx(1.5)
    assert found["low"] == pytest.approx(1.0) and found["high"] == pytest.approx(5 / 3)
    assert first_rounds(short, short)["low"] == first_rounds(short, short)["high"] == 1.0
