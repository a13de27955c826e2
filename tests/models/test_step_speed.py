"""The measured step: its result is stored for `recommend`, and a processor without int8 is a result too."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

pytest.importorskip("codespec.models.int8.kernels")
from codespec.errors import ModelError
from codespec.models import step_speed
from codespec.store.machine import read_step


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Use small matrices and an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(step_speed, "LAYER", ((64, 48), (48, 48), (96, 48), (48, 48)))
    monkeypatch.setattr(step_speed, "SECONDS", 0.01)
    monkeypatch.setattr(step_speed, "_is_busy", lambda: False)


def test_the_result_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert step_speed.main() == 0
    kept = read_step()
    assert kept is not None and kept > 0 and capsys.readouterr().out == f"{kept:.1f}\n"


def test_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> object:
        raise ModelError("int8 is not available on this processor.")

    monkeypatch.setattr(step_speed, "choose_kernel", none)
    assert step_speed.main() == 0 and read_step() == inf


def test_a_busy_machine_is_not_slow_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_speed, "_is_busy", lambda: True)
    monkeypatch.setattr(step_speed, "measure", lambda: 300.0)
    assert step_speed.main() == 1 and read_step() is None
    monkeypatch.setattr(step_speed, "measure", lambda: 30.0)
    assert step_speed.main() == 0 and read_step() == 30.0


def test_no_room(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/x")
    assert step_speed.main() == 1 and "/dev/null/x" in capsys.readouterr().err
