"""Planted faults in states and their rollback: each must change a bit of some row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from torch import Tensor

from codespec.models.recurrent.layer import RecurrentLayer, Step
from codespec.models.recurrent.states import LayerStates, Plan, Run, States
from tests.models.rounds import Replay, random_rounds
from tests.tiny_models import tiny_model

Patch = pytest.MonkeyPatch
RUN, CUT = RecurrentLayer._run, States.cut


def no_fault(patch: Patch) -> None:
    """Plant nothing."""


def one_row_too_few(patch: Patch) -> None:
    """Repeat all accepted rows but the first."""

    def wrong(
        self: RecurrentLayer, store: LayerStates, plan: Plan, part: Tensor, steps: Sequence[Step], out: Tensor
    ) -> None:
        runs = tuple(
            Run(run.first + 1, run.last, run.source, run.target) if run.last <= plan.start else run for run in plan.runs
        )
        RUN(self, store, replace(plan, runs=runs), part, steps, out)

    patch.setattr(RecurrentLayer, "_run", wrong)


def convolution_not_rolled_back(patch: Patch) -> None:
    """Let the convolution look back at the rows before the tip."""

    def wrong(
        self: RecurrentLayer, store: LayerStates, plan: Plan, part: Tensor, steps: Sequence[Step], out: Tensor
    ) -> None:
        RUN(self, store, plan, part, steps, out)
        store.rows[plan.slot, : self.history] = part[-self.history :]

    patch.setattr(RecurrentLayer, "_run", wrong)


def a_neighbours_state(patch: Patch) -> None:
    """Read and write the state of another slot."""

    def wrong(
        self: RecurrentLayer, store: LayerStates, plan: Plan, part: Tensor, steps: Sequence[Step], out: Tensor
    ) -> None:
        moved = LayerStates(store.states.roll(1, 0), store.rows, store.before) if plan.slot == 1 else store
        RUN(self, moved, plan, part, steps, out)

    patch.setattr(RecurrentLayer, "_run", wrong)


def the_tip_after_a_rejection(patch: Patch) -> None:
    """Keep the state behind rejected rows."""

    def wrong(self: States, slot: int, length: int) -> None:
        tip = self.places[slot].tip
        CUT(self, slot, length)
        if tip is not None and length and self.places[slot].base <= length:
            self.places[slot].tip = length

    patch.setattr(States, "cut", wrong)


FAULTS = (one_row_too_few, convolution_not_rolled_back, a_neighbours_state, the_tip_after_a_rejection)


@pytest.mark.parametrize("architecture", ["qwen3_5", "mamba2", "falcon_h1"])
@pytest.mark.parametrize("plant", [no_fault, *FAULTS])
def test_a_planted_fault_changes_a_bit(plant: Callable[[Patch], None], architecture: str) -> None:
    replay = Replay(tiny_model(architecture), 120)
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        found = replay.play(random_rounds(4, 25))
    assert (found == 0.0) == (plant is no_fault), found
