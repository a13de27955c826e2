"""A pair's costs are measured once, stored, and measured again if the file is unusable. No figure is asserted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from codespec.backends.torch.model import TorchModel
from codespec.startup import timing
from codespec.startup.timing import kept_table, measure_table, price
from tests.backends.cuda.fake_graphs import FakeRecorder, recorder
from tests.pairs import model
from tests.tiny_models import tiny_model

__all__ = ["recorder"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(timing, "TIMING_BUDGET_S", 0.05)
    return tmp_path / "codespec" / "costs"


def pair() -> tuple[TorchModel, TorchModel]:
    target, drafter = model("llama", "gpt2"), model("qwen3", "llama2", seed=1)
    target.allocate(4, 512)
    drafter.allocate(4, 512)
    return target, drafter


def name_of(target: TorchModel, *drafters: TorchModel) -> str:
    """Return the name of the file that keeps the table."""
    return kept_table(target, dict(enumerate(drafters))).file.name  # type: ignore[arg-type]


def test_measured_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, drafter = pair()
    notes: list[str] = []
    table = price(target, {"draft_model": drafter}, notes)
    monkeypatch.setattr(timing, "time_forward", None)  # a measurement would now fail
    assert price(target, {"draft_model": drafter}, notes) == table and notes == []
    assert len(list(folder.iterdir())) == 1
    assert name_of(target) != name_of(drafter) != name_of(target, drafter)


def test_a_table_is_of_one_device_mode_and_set_of_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change alone gives another name."""
    plain, target = tiny_model("llama"), tiny_model("llama", steps="device")
    plain.allocate(4, 512)
    names = [name_of(plain)]
    for graph_rows in (0, 16, 128):
        target.allocate(4, 512, graph_rows)
        names.append(name_of(target))
    target.exact = False
    names.append(name_of(target))
    for target.device in (torch.device("cuda:0"), torch.device("cuda:1")):
        for card in ("one card", "another card"):
            monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, card=card: card)
            names.append(name_of(target))
    assert len(set(names)) == len(names) and name_of(target) == names[-1]


def test_a_table_of_captured_steps_is_not_for_launched_ones(
    recorder: FakeRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same model and slots; only the capture differs."""
    target, names = tiny_model("llama", steps="device"), dict[bool, str]()

    def capture() -> None:
        target.allocate(4, 512, 2)
        target.capture()
        names[target.captured] = name_of(target)

    capture()
    monkeypatch.setattr(FakeRecorder, "begin", refuse)
    capture()
    assert set(names) == {True, False} and len(set(names.values())) == 2


def refuse(recorder: FakeRecorder) -> Any:
    raise RuntimeError("nothing can be recorded")


def test_measuring_leaves_the_slots_empty() -> None:
    target, _ = pair()
    table = measure_table(target, {}, 0.05)
    assert target.cache is not None and target.cache.lengths == [0] * 4
    assert table.target.seconds(8, 4, 300) >= table.target.seconds(1, 1, 0) > 0.0 < table.draft


def test_a_small_budget_measures_fewer_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MAX_SWEEPS", 1)
    target, _ = pair()
    rows = [len(measure_table(target, {}, budget).target.curves[0].rows) for budget in (1e-6, 60.0)]
    assert rows == [len(timing.GRIDS[-1][0]), len(timing.GRIDS[0][0])]


@pytest.mark.parametrize("text", ["", "{}", '{"format": 1, "content": {"target": 3}}', "\x00"])
def test_a_corrupt_file_is_measured_again(folder: Path, text: str) -> None:
    target, _ = pair()
    notes: list[str] = []
    price(target, {}, notes)
    (file,) = folder.iterdir()
    file.write_text(text)
    table = price(target, {}, notes)
    assert len(notes) == 1 and "measured again" in notes[0]
    assert price(target, {}, notes) == table and len(notes) == 1


def test_a_closed_folder_is_reported(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    target, _ = pair()
    notes: list[str] = []
    price(target, {}, notes)
    assert len(notes) in (1, 2) and "each start measures it again" in notes[-1]
