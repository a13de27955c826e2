"""Call shapes of an engine's models: found once, stored, rechecked on a short text, and searched again if no longer
exact.

A model that varies in every call shape is reported as running in fast mode.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from codespec.backends.language_model import Rows
from codespec.backends.torch.call_shape import FAST, CallShape
from codespec.backends.torch.linear import tiled_linears
from codespec.backends.torch.model import TorchModel
from codespec.errors import ConfigError
from codespec.startup import calls
from codespec.startup.calls import FORCED, SearchResult, choose_calls
from tests.tiny_models import tiny_model

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "codespec" / "calls"


@pytest.fixture
def searches(monkeypatch: Patch) -> list[int]:
    """Record one entry per search."""
    found: list[int] = []
    plain = calls.settle

    def settle(model: TorchModel, chunk: int) -> SearchResult:
        found.append(chunk)
        return plain(model, chunk)

    monkeypatch.setattr(calls, "settle", settle)
    return found


def loaded(exact: bool = True, dtype: torch.dtype = torch.float32) -> TorchModel:
    model = tiny_model("llama", exact=exact, dtype=dtype)
    model.use(CallShape(rows=16))  # the chosen shape must replace it
    model.allocate(3, 640)
    return model


def test_it_is_looked_for_once(kept: Path, searches: list[int], monkeypatch: Patch) -> None:
    notes: list[str] = []
    first, second = loaded(), loaded()
    found, again = choose_calls(first, notes, 64), choose_calls(second, notes, 64)
    assert searches == [64] and notes == [] and len(list(kept.iterdir())) == 1
    assert first.calls == second.calls == found.calls == again.calls != CallShape(rows=16)
    assert {layer.calls for layer in tiled_linears(second.network)} == {found.calls}
    assert again.tried == f"{found.tried}; on an earlier start"
    choose_calls(loaded(dtype=torch.bfloat16), notes)
    assert len(searches) == 2, "another number format is another model"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    choose_calls(loaded(), notes)
    assert len(searches) == 3, "and so is another number of threads"


def test_a_model_runs_on_the_threads_that_its_shape_was_found_for(monkeypatch: Patch) -> None:
    """Another engine of the process may have changed the thread count since."""
    current = [2]
    monkeypatch.setattr(torch, "get_num_threads", lambda: current[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: current.__setitem__(0, count))
    model = loaded()
    choose_calls(model, [])
    current[0] = 1
    model.forward([Rows(0, 0, [1, 2, 3])])
    assert current == [2]


def test_another_processor_looks_for_itself(searches: list[int], monkeypatch: Patch) -> None:
    choose_calls(loaded(), [])
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # as the processor's label says
    choose_calls(loaded(), [])
    assert len(searches) == 2


def test_what_is_kept_and_no_longer_holds_is_found_anew(kept: Path, searches: list[int], monkeypatch: Patch) -> None:
    choose_calls(loaded(), [])
    answers = iter(["it varies", ""])
    monkeypatch.setattr(calls, "find_variance", lambda *_: next(answers))
    notes: list[str] = []
    model = loaded()
    choose_calls(model, notes)
    assert len(searches) == 2 and model.exact
    assert notes == ["the kept shape of calls no longer holds (it varies): searching again"]


@pytest.mark.parametrize("text", ["", '{"format": 1, "content": {"calls": {"rows": -4}, "tried": ""}}'])
def test_a_corrupt_file_is_found_anew(text: str, kept: Path, searches: list[int]) -> None:
    choose_calls(loaded(), [])
    next(kept.iterdir()).write_text(text)
    notes: list[str] = []
    choose_calls(loaded(), notes)
    assert len(searches) == 2 and len(notes) == 1 and "can't be read" in notes[0]
    choose_calls(loaded(), notes)
    assert len(searches) == 2 and len(notes) == 1


def test_a_folder_that_can_not_be_written_is_reported(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    notes: list[str] = []
    model = loaded()
    choose_calls(model, notes)
    assert model.exact and len(notes) == 2 and "each start measures it again" in notes[1]


def test_a_model_that_varies_is_in_fast_mode(kept: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(calls, "settle", lambda model, chunk: SearchResult(FAST, "it varies"))
    notes: list[str] = []
    model = loaded()
    assert choose_calls(model, notes).variance == "it varies"
    assert not model.exact and model.calls is FAST and not kept.exists(), "the next start looks again"
    assert notes == ["exact mode does not hold here (it varies): fast mode is used, near-ties may differ"]


def test_tests_force_a_shape(searches: list[int], monkeypatch: Patch) -> None:
    shape = CallShape(rows=64, queries=16, max_queries=16)
    monkeypatch.setenv(FORCED, json.dumps(shape.as_dict()))
    model, fast = loaded(), loaded(exact=False)
    choose_calls(model, [])
    choose_calls(fast, [])
    assert model.calls == shape and model.exact and fast.calls == FAST and searches == []
    monkeypatch.setenv(FORCED, "32")
    with pytest.raises(ConfigError, match=f"{FORCED} = '32' is no shape of calls"):
        choose_calls(loaded(), [])
