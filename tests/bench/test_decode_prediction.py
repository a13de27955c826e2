"""The seconds that a cost table gives played steps: rows, the drafter's units, spelling, and the round itself."""

from __future__ import annotations

import pytest

from codespec.bench.decode_prediction import predicted_seconds
from codespec.bench.peers.contest import Played, PlayedStep
from codespec.speculation.cost_model import CostTable, Curve, ForwardCost

TABLE = CostTable(
    ForwardCost((64,), (Curve((1, 2, 8, 32), (1.0, 1.1, 1.4, 4.0)),)),
    {"draft_model": ForwardCost((64,), (Curve((1, 8), (0.2, 0.3)),))},
    retokenize=Curve((1, 8), (0.01, 0.01)),
)
PLAIN = Played("", 0, 0, 0)


def test_a_plain_step_costs_a_forward_and_a_round() -> None:
    assert predicted_seconds([PlayedStep(64.0, [PLAIN])], TABLE) == pytest.approx(1.0)
    assert predicted_seconds([PlayedStep(64.0, [PLAIN, PLAIN])] * 3, TABLE) == pytest.approx(3 * (1.1))


def test_drafts_cost_their_rows_whether_they_held_or_not() -> None:
    """Seven drafted ids make eight rows; a lookup has no forwards of its own, a drafter one a unit."""
    for accepted in (0, 7):
        lookup = predicted_seconds([PlayedStep(64.0, [Played("suffix", 7, accepted, 1)])], TABLE)
        assert lookup == pytest.approx(1.4 + 0.01)
    drafter = predicted_seconds([PlayedStep(64.0, [Played("draft_model", 7, 2, 5)])], TABLE)
    assert drafter == pytest.approx(1.4 + 0.01 + 5 * 0.2)
