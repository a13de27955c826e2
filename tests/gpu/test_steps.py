"""Steps on a GPU: graphs equal steps without a graph, and rollback is exact.

In `exact` mode bit for bit, in float32 and bfloat16, on ragged schedules that cross from one bucket of keys to the
next; equal to a CPU up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from codespec.backends.language_model import Rows
from codespec.backends.torch import attention
from codespec.backends.torch.model import TorchModel
from codespec.startup.batch_invariance import find_variance
from tests.backends.rounds import Replay, covering, fresh_prefill, gap, random_rounds
from tests.gpu.models import FLOATS, FORMS, gpu, on_gpu
from tests.tiny_models import sample_ids, tiny_model

pytestmark = gpu
SHORT, LONG = 120, 620  # the longer one crosses a bucket of keys
each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=str)
each_form = pytest.mark.parametrize("architecture", FORMS)


class Twins:
    """Two models of equal weights that must agree: one replays graphs, the other launches its steps directly.

    `worst` is the largest relative difference of their logits.
    """

    def __init__(self, architecture: str, dtype: torch.dtype, exact: bool) -> None:
        self.replayed = on_gpu(architecture, dtype, exact=exact)
        self.launched = on_gpu(architecture, dtype, exact=exact, graph_rows=0)
        self.worst = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.replayed, name)

    def allocate(self, slots: int, capacity: int) -> None:
        for model in (self.replayed, self.launched):
            model.allocate(slots, capacity)

    def admit(self, slot: int, length: int) -> None:
        for model in (self.replayed, self.launched):
            model.admit(slot, length)

    def rollback(self, slot: int, length: int) -> None:
        for model in (self.replayed, self.launched):
            model.rollback(slot, length)

    def forward(self, batch: Sequence[Rows]) -> Tensor:
        found, wanted = self.replayed.forward(batch), self.launched.forward(batch)
        if len(found):
            self.worst = max(self.worst, gap(found, wanted))
        return found


@each_dtype
@each_form
def test_replay_equals_launching_and_a_whole_prefill(architecture: str, dtype: torch.dtype) -> None:
    twins = Twins(architecture, dtype, exact=True)
    replay = Replay(cast("TorchModel", twins), SHORT)
    assert replay.play(covering(SHORT)) == 0.0
    for seed in range(4):
        assert replay.play(random_rounds(seed, 40)) == 0.0
    assert twins.worst == 0.0


@each_dtype
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_across_buckets_of_keys(architecture: str, dtype: torch.dtype) -> None:
    """A graph captured for short sequences is not replayed for long ones, in any batch."""
    twins = Twins(architecture, dtype, exact=True)
    replay = Replay(cast("TorchModel", twins), LONG)
    assert replay.play(covering(LONG)) == 0.0
    for seed in range(3):
        assert replay.play(random_rounds(seed, 60, chunk=200)) == 0.0
    assert twins.worst == 0.0


@each_dtype
def test_fast_mode_is_near(dtype: torch.dtype) -> None:
    twins = Twins("llama", dtype, exact=False)
    replay = Replay(cast("TorchModel", twins), SHORT)
    limit = 1e-4 if dtype == torch.float32 else 0.1
    assert replay.play(covering(SHORT)) <= limit
    assert replay.play(random_rounds(0, 40)) <= limit
    assert twins.worst <= limit


@each_dtype
@each_form
def test_the_start_up_check_finds_no_variance(architecture: str, dtype: torch.dtype) -> None:
    model = on_gpu(architecture, dtype)
    model.allocate(2, 64)
    assert find_variance(model) == ""
    assert not model.spec.notes


@each_form
def test_a_gpu_computes_what_a_cpu_does(architecture: str) -> None:
    ids = sample_ids(SHORT)
    here, there = (fresh_prefill(model, ids)[0] for model in (tiny_model(architecture), on_gpu(architecture)))
    assert gap(there.cpu(), here) <= 1e-3


def test_what_can_not_be_captured_runs_all_the_same() -> None:
    """A mixture of experts reads each expert's row count on the host; captured or not, its rows are right."""
    ids = sample_ids(40)
    wanted = fresh_prefill(tiny_model("mixtral"), ids)[0]
    model = on_gpu("mixtral", graph_rows=0)
    model.__class__.allocate(model, 2, 64, 8)
    problem = model.capture()
    chunks = [model.forward([Rows(0, start, ids[start : start + 4], keep=4)]) for start in range(0, 40, 4)]
    assert gap(torch.cat(chunks).cpu(), wanted) <= 1e-3, problem


@each_dtype
@each_form
def test_attention_between_graphs(architecture: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention that cannot be captured runs between graphs of the rest, with the same bits."""
    plain, told = attention.slot_attention, list[str]()

    def attend(*given: Any) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("attention can't be recorded")
        return plain(*given)

    monkeypatch.setattr(attention, "slot_attention", attend)
    monkeypatch.setattr("tests.gpu.models.check_captured", told.append)
    twins = Twins(architecture, dtype, exact=True)
    replay = Replay(cast("TorchModel", twins), SHORT)
    assert replay.play(covering(SHORT)) == 0.0
    assert replay.play(random_rounds(0, 40)) == 0.0
    assert twins.worst == 0.0
    assert any("between graphs" in problem for problem in told)
    assert not [problem for problem in told if "piece by piece" in problem]


def test_new_slots_replace_the_graphs() -> None:
    model, ids = on_gpu("llama"), sample_ids(30)
    whole = fresh_prefill(model, ids)[0]
    taken = []
    for _ in range(4):
        model.allocate(4, 600)
        model.admit(3, 600)
        found = [model.forward([Rows(3, start, ids[start : start + 5], keep=5)]) for start in range(0, 30, 5)]
        assert torch.equal(torch.cat(found), whole)
        torch.cuda.empty_cache()
        taken.append(torch.cuda.memory_reserved())
    assert taken[-1] <= 1.1 * taken[1], "graphs of slots that are gone keep their memory"
