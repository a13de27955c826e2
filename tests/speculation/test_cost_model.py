"""Measured points become nondecreasing curves despite noise; tables survive being written and read."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.speculation.cost_model import CostTable, Curve, ForwardCost, Point

POINTS = st.dictionaries(st.integers(1, 64), st.floats(1e-4, 1.0), min_size=1, max_size=8)


@given(POINTS)
def test_a_curve_never_falls_and_keeps_the_mean(points: dict[int, float]) -> None:
    curve = Curve.fit(points)
    seconds = [curve.at(rows) for rows in range(1, 100)]
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(seconds))
    assert sum(curve.seconds) == pytest.approx(sum(points.values()))
    if list(points.values()) == sorted(points.values()) and list(points) == sorted(points):
        assert list(curve.seconds) == pytest.approx(list(points.values()))


def test_between_and_beyond_the_points() -> None:
    curve = Curve.fit({1: 1.0, 3: 2.0, 5: 4.0})
    assert [curve.at(rows) for rows in (0, 1, 2, 3, 4, 5, 7)] == pytest.approx([1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    assert Curve.fit({4: 2.0}).at(99) == 2.0


def forward_cost() -> ForwardCost:
    points = [Point(1, 1, 64, 1.0), Point(8, 1, 64, 2.0), Point(1, 1, 1024, 1.5), Point(8, 1, 1024, 4.0)]
    return ForwardCost.from_points([*points, Point(2, 2, 64, 1.4), Point(8, 8, 64, 2.7)])


def test_contexts_and_batches_come_on_top() -> None:
    cost = forward_cost()
    assert cost.seconds(8, 1, 64) == cost.seconds(8, 1, 0) == pytest.approx(2.0)
    assert cost.seconds(8, 1, 544) == pytest.approx(3.0), "halfway between the contexts"
    assert cost.seconds(8, 1, 9999) == pytest.approx(4.0)
    assert cost.seconds(8, 8, 64) == pytest.approx(2.7)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 16), st.integers(1, 16), st.floats(0, 4000))
def test_more_never_costs_less(rows: int, more: int, batch: int, others: int, context: float) -> None:
    cost = forward_cost()
    here = cost.seconds(rows, batch, context)
    assert cost.seconds(rows + more, batch, context) >= here - 1e-12
    assert cost.seconds(rows, batch + others, context) >= here - 1e-12
    assert cost.seconds(rows, batch, context + 100) >= here - 1e-12


def test_tables_are_read_as_they_were_written() -> None:
    table = CostTable(forward_cost(), {"draft_model": forward_cost()}, 1e-4)
    assert CostTable.from_dict(json.loads(json.dumps(asdict(table)))) == table


@pytest.mark.parametrize(
    "fault",
    [
        {"target": {}},
        {"target": {"contexts": [64], "curves": [], "batches": {"rows": [1], "seconds": [0]}}},
        {"target": {"contexts": [64], "curves": [{"rows": [2, 1], "seconds": [1, 1]}], "batches": None}},
        {"target": {"contexts": [64], "curves": [{"rows": [1], "seconds": ["x"]}], "batches": None}},
        {"target": {"contexts": [64], "curves": [{"rows": [1], "seconds": [float("nan")]}], "batches": None}},
        {"draft": None},
        {"draft": float("nan")},
    ],
)
def test_what_is_no_table_is_refused(fault: dict[str, object]) -> None:
    values = json.loads(json.dumps(asdict(CostTable(forward_cost()))))
    with pytest.raises((ValueError, TypeError, KeyError)):
        CostTable.from_dict({**values, **fault})
