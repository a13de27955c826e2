"""Captured steps give the results of launched ones, and failed captures leave launched ones; on fake graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from torch import Tensor

from codespec.backends.memory_plan import Need, make_room
from codespec.backends.torch import attention
from codespec.backends.torch.model import TorchModel
from tests.backends.cuda.fake_graphs import FakeGraph, FakeRecorder, recorder
from tests.backends.rounds import Replay, Round, covering, rounds
from tests.tiny_models import tiny_model

__all__ = ["recorder"]

LENGTH, LAYERS, GRAPH_ROWS = 100, 2, 24
TRAITS = {
    "llama": "lean blocks",
    "gemma2": "soft caps and a window, transformers' own layers",
    "phi3": "a rotary chosen per request",
    "gpt2": "learned positions",
}


def capturing(model: TorchModel, notes: list[str]) -> TorchModel:
    """Return the same model, which captures its steps at every `allocate`."""
    plain = model.allocate

    def allocate(slots: int, capacity: int) -> None:
        plain(slots, capacity, GRAPH_ROWS)
        notes.append(model.capture())

    model.allocate = allocate  # type: ignore[method-assign,assignment]
    return model


def host_attention(*_: Any) -> Tensor:
    raise RuntimeError("attention waits for the host\nand more lines")


@pytest.mark.parametrize("architecture", TRAITS)
def test_a_captured_step_gives_what_a_launched_one_gives(architecture: str, recorder: FakeRecorder) -> None:
    """Bit for bit over ragged rounds, and every replay runs the attention of every layer."""
    wanted = Replay(tiny_model(architecture, steps="device"), LENGTH)
    notes: list[str] = []
    replay = Replay(capturing(tiny_model(architecture, steps="device"), notes), LENGTH, wanted.logits)
    recorder.heard.clear()
    assert replay.play(covering(LENGTH)) == 0.0
    assert set(notes) == {""} and replay.model.captured
    played = "".join(part[0] for part in recorder.heard)
    assert played.count("g" + "a" * LAYERS) == played.count("g") >= 8

    @settings(max_examples=2)
    @given(rounds(12, chunk=20))
    def play(played: list[Round]) -> None:
        assert replay.play(played) == 0.0

    play()


def test_a_kernel_that_is_not_replayed_is_noticed(recorder: FakeRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake graphs detect a fault: results are wrong if a replay skips attention."""
    record = FakeGraph.record

    def skip(graph: FakeGraph, kernel: Callable[..., Tensor], *given: Any) -> Tensor:
        made = record(graph, kernel, *given)
        del graph._calls[-1]
        return made

    monkeypatch.setattr(FakeGraph, "record", skip)
    replay = Replay(capturing(tiny_model("llama", steps="device"), []), LENGTH)
    assert replay.play(covering(LENGTH)) > 0.01


@pytest.mark.parametrize("failing", [0, 3])
def test_all_steps_are_launched_if_one_can_not_be_captured(
    failing: int, recorder: FakeRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first bucket or a later one."""
    plain, begun = FakeRecorder.begin, list[int]()

    def begin(self: FakeRecorder) -> FakeGraph:
        begun.append(len(begun))
        if len(begun) > failing:
            raise RuntimeError("no room for a graph")
        return plain(self)

    monkeypatch.setattr(FakeRecorder, "begin", begin)
    model, notes = tiny_model("llama", steps="device"), list[str]()
    make_room([Need(model, 3, LENGTH, 64, 4)], GRAPH_ROWS, lambda phase: None, notes)
    assert notes == ["llama can't be captured as graphs (no room for a graph): its kernels are launched one by one"]
    assert len(begun) == failing + 1
    assert model._runner is not None and not model._runner._steps and not model.captured
    replay = Replay(model, LENGTH, Replay(tiny_model("llama", steps="device"), LENGTH).logits)
    assert replay.play(covering(LENGTH)) == 0.0 and "graph" not in recorder.heard


@pytest.mark.parametrize("ends", [True, False])
def test_the_first_failure_is_reported(ends: bool, recorder: FakeRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real device, a failed capture fails again when it is ended."""
    plain = FakeGraph.capture_end

    def capture_end(graph: FakeGraph) -> None:
        plain(graph)
        if not ends:
            raise RuntimeError("a failure before")

    monkeypatch.setattr(FakeGraph, "capture_end", capture_end)
    model, kernel = tiny_model("llama", steps="device"), attention.slot_attention

    def attend(*given: Any) -> Tensor:
        return (host_attention if recorder.going else kernel)(*given)

    monkeypatch.setattr(attention, "slot_attention", attend)
    model.allocate(3, LENGTH, GRAPH_ROWS)
    assert "(attention waits for the host)" in model.capture()


def test_every_bucket_is_one_graph(recorder: FakeRecorder) -> None:
    model = tiny_model("llama", steps="device")
    model.allocate(3, LENGTH, GRAPH_ROWS)
    assert model._runner is not None and not model.captured
    assert model.capture() == "" and len(recorder.made) == len(model._runner.buckets.largest_first())
    assert model.captured
