"""Piecewise replay, with attention between the graphs, for steps that cannot be captured whole; on fake graphs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from codespec.models import attention, memory_plan
from codespec.models.cuda import graphs
from codespec.models.cuda.graphs import PiecewiseGraph
from codespec.models.language_model import LanguageModel
from codespec.models.memory_plan import Need, make_room, parts_claim, step_claims
from tests.models.cuda.fake_graphs import FakeGraph, FakeRecorder, recorder
from tests.models.rounds import Replay, Round, covering, rounds
from tests.tiny_models import tiny_model

__all__ = ["recorder"]

LENGTH, LAYERS, GRAPH_ROWS = 100, 2, 24
TRAITS = {
    "llama": "lean blocks",
    "gemma2": "soft caps and a window, transformers' own layers",
    "phi3": "a rotary chosen per request",
    "gpt2": "learned positions",
}


def recording(model: LanguageModel, notes: list[str]) -> LanguageModel:
    """Return the same model, which records at every `allocate`."""
    plain = model.allocate

    def allocate(slots: int, capacity: int) -> None:
        plain(slots, capacity, GRAPH_ROWS)
        notes.append(model.capture())

    model.allocate = allocate  # type: ignore[method-assign,assignment]
    return model


@pytest.mark.parametrize("architecture", TRAITS)
def test_parts_give_what_a_whole_step_gives(architecture: str, recorder: FakeRecorder) -> None:
    """Bit for bit over ragged rounds, and every step is graph, attention, graph, …, graph."""
    wanted = Replay(tiny_model(architecture, steps="device"), LENGTH)
    notes: list[str] = []
    replay = Replay(recording(tiny_model(architecture, steps="device"), notes), LENGTH, wanted.logits)
    assert replay.play(covering(LENGTH)) == 0.0
    assert set(notes) == {
        "can't be captured whole (attention waits for the host): attention is launched between graphs of the rest"
    }
    played = "".join(part[0] for part in recorder.heard)
    steps = played.count("ga" * LAYERS + "g")
    assert steps >= 8 and played.count("g") == steps * (LAYERS + 1)

    @settings(max_examples=2)
    @given(rounds(12, chunk=20))
    def play(played: list[Round]) -> None:
        assert replay.play(played) == 0.0

    play()


def test_attention_that_was_recorded_once_is_not_attended_again(recorder: FakeRecorder) -> None:
    """The fake graphs detect a fault: replaying parts without attention between them gives wrong results."""
    replay = Replay(recording(tiny_model("llama", steps="device"), []), LENGTH)
    whole = PiecewiseGraph.attend

    def forget(parts: PiecewiseGraph, call: Callable[[], Tensor]) -> Tensor:
        seen = whole(parts, call)
        del parts._pieces[-1]
        return seen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PiecewiseGraph, "attend", forget)
        assert replay.play(covering(LENGTH)) > 0.01


@pytest.mark.parametrize("failing", [0, 3])
def test_from_whole_to_parts_to_none(failing: int, recorder: FakeRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """If nothing can be captured, in the first bucket or a later one, all steps are launched directly."""
    plain, asked = FakeRecorder.begin, list[int]()

    def begin(self: FakeRecorder) -> FakeGraph:
        asked.append(len(asked))
        if len(asked) > 1 + failing * (LAYERS + 1):  # one call was for the whole step
            raise RuntimeError("")
        return plain(self)

    monkeypatch.setattr(FakeRecorder, "begin", begin)
    model, notes = tiny_model("llama", steps="device"), list[str]()
    make_room([Need(model, 3, LENGTH, 64, 4)], GRAPH_ROWS, lambda phase: None, notes)
    assert notes == [
        "llama can't be captured as graphs (attention waits for the host): its steps are launched piece by piece"
    ]
    assert len(asked) == 2 + failing * (LAYERS + 1)
    assert model._runner is not None and not model._runner._steps and model.graphs == "none"
    replay = Replay(model, LENGTH, Replay(tiny_model("llama", steps="device"), LENGTH).logits)
    assert replay.play(covering(LENGTH)) == 0.0 and "graph" not in recorder.heard


def test_parts_that_do_not_fit_are_not_tried(recorder: FakeRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two models, none, one or both have room for piecewise graphs; steps of the others are launched directly."""
    models = [tiny_model(name, steps="device") for name in ("llama", "gpt2")]
    needs = [Need(model, 3, LENGTH, 64, 4) for model in models]
    surely = sum(claim.nbytes for need in needs for claim in step_claims(need, GRAPH_ROWS))
    room = parts_claim(needs[0], GRAPH_ROWS).nbytes
    notes: dict[int, list[str]] = {}
    for spare in (0, room, room + parts_claim(needs[1], GRAPH_ROWS).nbytes):
        monkeypatch.setattr(memory_plan, "free_memory", lambda device, free=surely + spare: free)
        make_room(needs, GRAPH_ROWS, lambda phase: None, notes.setdefault(spare, []))
    assert [["between graphs" in note for note in told] for told in notes.values()] == [
        [False, False],
        [True, False],
        [True, True],
    ]
    none, one = notes[0][0], notes[room][1]
    assert "llama can't be captured whole (attention waits for the host), and graphs in parts need 0.0 GB more" in none
    assert one.startswith("gpt2") and one.endswith(
        f"(lower graph_rows ({GRAPH_ROWS})): its steps are launched piece by piece"
    )
    assert [model.graphs for model in models] == ["parts", "parts"]


def test_the_first_failure_is_told(recorder: FakeRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real device, a failed capture fails again when it is ended."""
    plain = FakeGraph.capture_end

    def capture_end(graph: FakeGraph) -> None:
        plain(graph)
        raise RuntimeError("a failure before")

    monkeypatch.setattr(FakeGraph, "capture_end", capture_end)
    model = tiny_model("llama", steps="device")
    model.allocate(3, LENGTH, GRAPH_ROWS)
    assert "(attention waits for the host)" in model.capture()


def test_a_step_that_can_be_recorded_is_one_part(recorder: FakeRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama", steps="device")
    monkeypatch.setattr(attention, "slot_attention", lambda query, *_: query.clone())
    model.allocate(3, LENGTH, GRAPH_ROWS)
    assert model._runner is not None
    assert model.graphs == "none"
    assert model.capture() == "" and len(recorder.made) == len(model._runner.buckets.largest_first())
    assert model.graphs == "whole"


def test_parts_are_not_tried_where_memory_stays_taken(recorder: FakeRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed capture may leave memory that torch cannot free, and parts would need more of it."""
    monkeypatch.setattr(graphs, "frees_memory", lambda device: False)
    notes: list[str] = []
    model = recording(tiny_model("llama", steps="device"), notes)
    model.allocate(1, 64)
    assert notes == [
        "can't be captured whole (attention waits for the host), and torch frees no memory after that "
        "(graph_rows = 0 leaves it as it was): its steps are launched piece by piece"
    ]
    assert model.graphs == "none" and len(recorder.made) == 1


@pytest.mark.parametrize(("after", "frees"), [(100, False), (36, True)])
def test_memory_is_tried_by_freeing_some(after: int, frees: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    reserved = iter((100, after))
    cuda = SimpleNamespace(memory_reserved=lambda device: next(reserved), empty_cache=lambda: None)
    monkeypatch.setattr(graphs, "torch", SimpleNamespace(cuda=cuda, empty=lambda *_, **__: None, uint8=torch.uint8))
    monkeypatch.setattr(graphs, "on_device", lambda device: nullcontext())
    assert graphs.frees_memory(torch.device("cuda", 1)) is frees
    assert graphs.frees_memory(torch.device("cpu"))
