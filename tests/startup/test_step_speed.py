"""The measured step: its result is printed, and a machine without the kernels is a result too."""

from __future__ import annotations

from math import inf

import pytest
from codespec_native.library import NativeError

from codespec.startup import step_speed


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small matrices."""
    monkeypatch.setattr(step_speed, "LAYER", ((64, 256), (48, 256), (96, 256), (48, 512)))
    monkeypatch.setattr(step_speed, "SECONDS", 0.01)
    monkeypatch.setattr(step_speed, "_is_busy", lambda: False)


def printed(capsys: pytest.CaptureFixture[str]) -> float:
    assert step_speed.main() == 0
    return float(capsys.readouterr().out)


def test_the_result_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 < printed(capsys) < inf


def test_no_kernels(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> object:
        raise NativeError("The library is missing.")

    monkeypatch.setattr(step_speed, "find_path", none)
    assert printed(capsys) == inf


def test_a_busy_machine_is_not_slow_for_good(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_speed, "_is_busy", lambda: True)
    monkeypatch.setattr(step_speed, "measure", lambda: 300.0)
    assert step_speed.main() == 1 and capsys.readouterr().out == ""
    monkeypatch.setattr(step_speed, "measure", lambda: 30.0)
    assert printed(capsys) == 30.0
