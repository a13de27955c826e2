"""Costs follow the measured rounds, which correct a table measured at a bad moment."""

from __future__ import annotations

import pytest

from codespec.speculation.cost_model import OFTEN, CostTable, ForwardCost, Point, Ratio, RunningCosts

TRUE = {1: 0.020, 2: 0.021, 4: 0.022, 8: 0.024, 16: 0.030}
DRAFTER = {1: 0.002, 8: 0.003}


def table(verify: float = 1.0, draft: float = 1.0, later: float = 1.0) -> CostTable:
    """Return a wrong table: the target's cost times `verify`, beyond one row times `later`, the drafter's times
    `draft`.
    """
    points = [Point(rows, 1, 0, seconds * verify * (later if rows > 1 else 1.0)) for rows, seconds in TRUE.items()]
    drafter = [Point(rows, 1, 0, seconds * draft) for rows, seconds in DRAFTER.items()]
    costs = {"draft_model": ForwardCost.from_points(drafter)}
    return CostTable(ForwardCost.from_points(points), costs, 0.0001)


def run(costs: RunningCosts, steps: int, noise: float = 1.0) -> None:
    """Book steps of one to eight rows, each after two drafter forwards, at their true costs."""
    begun, truth = costs.table, table()
    for step in range(steps):
        rows = 1 + step % 8
        modelled, really = begun.target.seconds(rows), truth.target.seconds(rows)
        forwards = 2 * begun.drafters["draft_model"].seconds(1), 2 * truth.drafters["draft_model"].seconds(1)
        late = noise if step % 20 == 7 else 1.0
        costs.took(rows, (modelled, late * really), forwards)


@pytest.mark.parametrize("wrong", [table(draft=6.0), table(verify=3.0), table(later=4.0), table(draft=0.2)])
def test_a_wrong_table_is_fixed(wrong: CostTable) -> None:
    costs, truth = RunningCosts(wrong), table()
    run(costs, 600)
    fitted = costs.fitted()
    for rows in (1, 2, 4, 8):
        assert fitted.target.seconds(rows) == pytest.approx(truth.target.seconds(rows), rel=0.15)
    drafter = fitted.drafters["draft_model"]
    assert drafter.seconds(1) == pytest.approx(0.002, rel=0.05) and drafter.seconds(8) == pytest.approx(0.003, rel=0.05)


def test_a_right_table_stays_though_the_machine_stumbles() -> None:
    costs, truth = RunningCosts(table()), table()
    run(costs, 600, noise=50.0)
    for rows in (1, 4, 8):
        assert costs.fitted().target.seconds(rows) == pytest.approx(truth.target.seconds(rows), rel=0.1)


def test_what_was_not_seen_goes_along() -> None:
    costs = RunningCosts(table(verify=2.0))
    for _ in range(300):
        costs.took(1, (0.040, 0.020), (0.0, 0.0))
    assert costs.fitted().target.seconds(16) == pytest.approx(0.030, rel=0.02)
    assert costs.fitted().drafters["draft_model"].seconds(1) == pytest.approx(0.001, rel=0.02)


def test_what_lies_between_goes_between() -> None:
    costs = RunningCosts(table())
    for _ in range(300):
        costs.took(1, (1.0, 1.0), (0.0, 0.0))
        costs.took(16, (1.0, 3.0), (0.0, 0.0))
    seconds = [costs.fitted().target.seconds(rows) / table().target.seconds(rows) for rows in (1, 4, 16)]
    assert seconds == pytest.approx([1.0, 3.0**0.5, 3.0], rel=0.1)


def test_seconds_never_fall_with_rows() -> None:
    costs = RunningCosts(table())
    for _ in range(300):
        costs.took(1, (1.0, 3.0), (0.0, 0.0))
        costs.took(4, (1.0, 0.5), (0.0, 0.0))
    curve = costs.fitted().target.curves[0].seconds
    assert list(curve) == sorted(curve)


def test_a_new_table_now_and_then() -> None:
    costs = RunningCosts(table())
    assert [costs.took(1, (0.02, 0.02), (0.0, 0.0)) for _ in range(2 * OFTEN)].count(True) == 2


def test_one_outlier_says_little() -> None:
    ratio = Ratio()
    for _ in range(200):
        ratio.add(1.0)
    ratio.add(1e6)
    assert 1.0 < ratio.middle <= 1.02
    ratio.add(0.0)
    assert ratio.middle == pytest.approx(1.0, rel=0.02)
