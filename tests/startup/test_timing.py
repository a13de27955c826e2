"""Timings visit shapes and keep medians; threads are chosen by their slow moments. No figure is asserted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from codespec.startup import timing
from codespec.startup.timing import ForwardShape, measure
from codespec.startup.tuning import choose_threads
from tests.pairs import model


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_median_of_several_visits_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy or lucky moment hits every shape once and none of the results."""
    visits: dict[ForwardShape, int] = {}

    def forward(_: object, shape: ForwardShape) -> float:
        visits[shape] = visits.get(shape, 0) + 1
        return {0: 9.0, 1: 1e-9}.get((visits[shape] + shape[0]) % 5, 1e-6 * shape[0])

    monkeypatch.setattr(timing, "time_forward", forward)
    target = model("llama", "gpt2")
    target.allocate(4, 512)
    (found,) = measure([target], 1.0)
    assert {batch for _, batch, _ in found} == {1, 2, 4} and min(visits.values()) >= 3
    assert all(seconds == pytest.approx(1e-6 * rows) for (rows, _, _), seconds in found.items())


@pytest.mark.parametrize("stall,threads", [(0.0, 2), (0.2, 1)])
def test_two_threads_only_if_their_bad_moments_are_better(
    stall: float, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads are twice as fast; with a stall in each tenth forward they are not chosen."""
    count = 0

    def forward(*_: object) -> float:
        nonlocal count
        count += 1
        if torch.get_num_threads() == 1:
            return 0.01
        return 0.005 + (stall if count % 10 == 0 else 0.0)

    monkeypatch.setattr("codespec.startup.tuning.time_forward", forward)
    target = model("llama", "gpt2")
    target.allocate(2, 512)
    torch.set_num_threads(1)
    assert choose_threads(target, 2, 0.05) == threads
    assert torch.get_num_threads() == 1
