"""Steps that are replayed in parts with attention between them, where a step can't be recorded whole.

A tape stands for a graph: it notes every operation with its tensors, and plays them again into the same memory. What it
can't do, as a graph can't, is to answer the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from codespec.models import attention, graphs
from codespec.models.language_model import LanguageModel
from codespec.models.memory_plan import Need, make_room
from codespec.models.piecewise import Graph, Parts
from tests.models.rounds import Replay, Round, covering, rounds
from tests.tiny_models import tiny_model

LENGTH, LAYERS, GRAPH_ROWS = 100, 2, 24
TRAITS = {
    "llama": "lean blocks",
    "gemma2": "soft caps and a window, transformers' own layers",
    "phi3": "a rotary chosen per request",
    "gpt2": "learned positions",
}


class Tape(TorchDispatchMode):
    """Operations in order, with the tensors that they read and made."""

    def __init__(self, heard: list[str]) -> None:
        super().__init__()
        self._heard = heard
        self._calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a number is asked for by the host")
        made = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, made))
        return made

    def capture_end(self) -> None:
        self.__exit__(None, None, None)

    def replay(self) -> None:
        self._heard.append("graph")
        for func, args, kwargs, made in self._calls:
            for new, old in zip(tree_leaves(func(*args, **kwargs)), tree_leaves(made), strict=True):
                if isinstance(old, Tensor) and new.data_ptr() != old.data_ptr():
                    old.copy_(new)


class Tapes:
    """Records on tapes; `going` while one does. `heard` are the parts that were played."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.made: list[Tape] = []

    def begin(self) -> Graph:
        self.made.append(Tape(self.heard))
        self.made[-1].__enter__()
        return self.made[-1]

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()

    @property
    def going(self) -> bool:
        return torch.utils._python_dispatch._get_current_dispatch_mode() is not None


@pytest.fixture
def tapes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tapes]:
    """Steps are recorded on tapes here, and attention fails on one."""
    found = Tapes()
    plain = attention.slot_attention

    def attend(*given: Any) -> Tensor:
        if found.going:
            raise RuntimeError("attention waits for the host\nand more lines")
        found.heard.append("attention")
        return plain(*given)

    monkeypatch.setattr(graphs, "recorder_for", lambda device: found)
    monkeypatch.setattr(attention, "slot_attention", attend)
    yield found
    assert not found.going, "a tape was left running"


def recording(model: LanguageModel, notes: list[str]) -> LanguageModel:
    """The same model, recording whenever it is given slots."""
    plain = model.allocate

    def allocate(slots: int, capacity: int) -> None:
        plain(slots, capacity, GRAPH_ROWS)
        notes.append(model.capture())

    model.allocate = allocate  # type: ignore[method-assign,assignment]
    return model


@pytest.mark.parametrize("architecture", TRAITS)
def test_parts_give_what_a_whole_step_gives(architecture: str, tapes: Tapes) -> None:
    """Bit for bit over ragged rounds, and every step is graph, attention, graph, …, graph."""
    wanted = Replay(tiny_model(architecture, steps="device"), LENGTH)
    notes: list[str] = []
    replay = Replay(recording(tiny_model(architecture, steps="device"), notes), LENGTH, wanted.logits)
    assert replay.play(covering(LENGTH)) == 0.0
    assert set(notes) == {
        "can't be captured whole (attention waits for the host): attention is launched between graphs of the rest"
    }
    played = "".join(part[0] for part in tapes.heard)
    steps = played.count("ga" * LAYERS + "g")
    assert steps >= 8 and played.count("g") == steps * (LAYERS + 1)

    @settings(max_examples=2)
    @given(rounds(12, chunk=20))
    def play(played: list[Round]) -> None:
        assert replay.play(played) == 0.0

    play()


def test_attention_that_was_recorded_once_is_not_attended_again(tapes: Tapes) -> None:
    """The tapes see a fault: parts that are played without attention between them are wrong."""
    replay = Replay(recording(tiny_model("llama", steps="device"), []), LENGTH)
    whole = Parts.attend

    def forget(parts: Parts, call: Callable[[], Tensor]) -> Tensor:
        seen = whole(parts, call)
        del parts._plays[-1]
        return seen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parts, "attend", forget)
        assert replay.play(covering(LENGTH)) > 0.01


@pytest.mark.parametrize("failing", [0, 3])
def test_from_whole_to_parts_to_none(failing: int, tapes: Tapes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be recorded, in the first bucket or in a later one: all steps are launched as they come."""
    plain, asked = Tapes.begin, list[int]()

    def begin(self: Tapes) -> Graph:
        asked.append(len(asked))
        if len(asked) > 1 + failing * (LAYERS + 1):  # one of them was the whole step's
            raise RuntimeError("")
        return plain(self)

    monkeypatch.setattr(Tapes, "begin", begin)
    model, notes = tiny_model("llama", steps="device"), list[str]()
    make_room([Need(model, 3, LENGTH, 64, 4)], GRAPH_ROWS, lambda phase: None, notes)
    assert notes == [
        "llama can't be captured as graphs (attention waits for the host): its steps are launched piece by piece"
    ]
    assert len(asked) == 2 + failing * (LAYERS + 1)
    assert model._runner is not None and not model._runner._steps
    replay = Replay(model, LENGTH, Replay(tiny_model("llama", steps="device"), LENGTH).logits)
    assert replay.play(covering(LENGTH)) == 0.0 and "graph" not in tapes.heard


def test_a_step_that_can_be_recorded_is_one_part(tapes: Tapes, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama", steps="device")
    monkeypatch.setattr(attention, "slot_attention", lambda query, *_: query.clone())
    model.allocate(3, LENGTH, GRAPH_ROWS)
    assert model._runner is not None
    assert model.capture() == "" and len(tapes.made) == len(model._runner.buckets.largest_first())
