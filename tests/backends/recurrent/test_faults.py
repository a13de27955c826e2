"""Planted faults in states and their rollback: each must change a bit of some row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from codespec.backends.torch.recurrent_layers import RecurrentLayer
from codespec.backends.torch.recurrent_states import LayerStates, Run, StatePlan, States
from tests.backends.rounds import Replay, random_rounds
from tests.tiny_models import tiny_model

Patch = pytest.MonkeyPatch
CUT = States.cut


def no_fault(patch: Patch) -> None:
    """Plant nothing."""


def around_runs(patch: Patch, wrong: Callable[..., None]) -> None:
    """Replace the layers' `_run` by `wrong(run, layer, store, plan, part, steps, out)`."""

    def around(run: Callable[..., None]) -> Callable[..., None]:
        return lambda *given: wrong(run, *given)

    patch.setattr(RecurrentLayer, "_run", around(RecurrentLayer._run))


def one_row_too_few(patch: Patch) -> None:
    """Repeat all accepted rows but the first."""

    def wrong(run: Any, layer: RecurrentLayer, store: LayerStates, plan: StatePlan, *rest: Any) -> None:
        runs = tuple(
            Run(one.first + 1, one.last, one.source, one.target) if one.last <= plan.start else one for one in plan.runs
        )
        run(layer, store, replace(plan, runs=runs), *rest)

    around_runs(patch, wrong)


def convolution_not_rolled_back(patch: Patch) -> None:
    """Let the convolution look back at the rows before the tip."""

    def wrong(run: Any, layer: RecurrentLayer, store: LayerStates, plan: StatePlan, part: Tensor, *rest: Any) -> None:
        run(layer, store, plan, part, *rest)
        store.rows[plan.slot, : layer.history] = part[-layer.history :]

    around_runs(patch, wrong)


def a_neighbours_state(patch: Patch) -> None:
    """Read and write the state of another slot."""

    def wrong(run: Any, layer: RecurrentLayer, store: LayerStates, plan: StatePlan, *rest: Any) -> None:
        moved = LayerStates(store.states.roll(1, 0), store.rows, store.before) if plan.slot == 1 else store
        run(layer, moved, plan, *rest)

    around_runs(patch, wrong)


def the_tip_after_a_rejection(patch: Patch) -> None:
    """Keep the state after rejected rows."""

    def wrong(self: States, slot: int, length: int) -> None:
        tip = self.places[slot].tip
        CUT(self, slot, length)
        if tip is not None and length and self.places[slot].base <= length:
            self.places[slot].tip = length

    patch.setattr(States, "cut", wrong)


PLANTS = (
    no_fault,
    one_row_too_few,
    convolution_not_rolled_back,
    a_neighbours_state,
    the_tip_after_a_rejection,
)


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_changes_a_bit(plant: Callable[[Patch], None]) -> None:
    replay = Replay(tiny_model("qwen3_5"), 120)
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        found = replay.play(random_rounds(4, 25))
    assert (found == 0.0) == (plant is no_fault), found
