"""States of the set-up: a second make after a finished, a failed and an interrupted one."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import make_venv
from tools.make_venv import IMPORTED, SetupError, Venv, build, check_python, pinned


class FakeSteps:
    """Replaces every process that the set-up starts; `stop` names the step that fails or is interrupted."""

    def __init__(self, venv: Venv) -> None:
        self.venv = venv
        self.done: list[str] = []
        self.stop: dict[str, BaseException] = {}

    def __call__(self, command: list[str | Path], what: str) -> None:
        self.done.append(what)
        if what in self.stop:
            raise self.stop[what]
        if what == "building .venv":
            self.venv.python.parent.mkdir(parents=True, exist_ok=True)
            self.venv.python.symlink_to(sys.executable)


def in_order(steps: FakeSteps) -> list[str]:
    """Return the steps, without those for the kernels: they run beside others."""
    return [step for step in steps.done if not step.startswith(("compiling", "installing ziglang"))]


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSteps:
    (tmp_path / "constraints.txt").write_text("# pins\nhatchling==1\ntorch==2.13.0\ntorchaudio==9\n")
    steps = FakeSteps(Venv(tmp_path))
    monkeypatch.setattr(steps.venv, "_run", steps)
    return steps


def test_first_set_up_runs_every_step_and_is_ready(steps: FakeSteps, capsys: pytest.CaptureFixture[str]) -> None:
    build(steps.venv)
    assert in_order(steps) == [
        "building .venv",
        "installing torch==2.13.0",
        "installing hatchling==1",
        "installing .[torch,dev,all-grammars]",
        "installing ./native",
        f"importing torch, transformers, {', '.join(IMPORTED)}",
    ]
    assert "compiling the kernels" in steps.done
    for mark in (steps.venv.light, steps.venv.ready):
        assert mark.read_text().strip() == str(steps.venv.root)
    assert not steps.venv.unfinished.exists()
    assert "torch has about 200 MB" in capsys.readouterr().out, "before the download begins"


def test_the_light_set_up_has_no_torch_and_the_whole_one_completes_it(steps: FakeSteps) -> None:
    build(steps.venv, light=True)
    assert in_order(steps) == [
        "building .venv",
        "installing hatchling==1",
        "installing .",
        "installing ./native",
        f"importing {', '.join(IMPORTED)}",
    ]
    assert steps.venv.light.exists() and not steps.venv.ready.exists()
    steps.done.clear()
    build(steps.venv)
    assert "building .venv" not in steps.done and steps.venv.light.exists() and steps.venv.ready.exists()


def test_a_machine_without_a_compiler_gets_zig(steps: FakeSteps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    build(steps.venv)
    assert steps.done.index("installing ziglang==0.17.1") < steps.done.index("compiling the kernels")


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SetupError("no network")])
@pytest.mark.parametrize(
    "at",
    [
        "building .venv",
        "installing torch==2.13.0",
        "installing hatchling==1",
        "installing .[torch,dev,all-grammars]",
        "installing ./native",
        "compiling the kernels",
    ],
)
def test_stopped_set_up_begins_afresh(at: str, stop: BaseException, steps: FakeSteps) -> None:
    steps.stop[at] = stop
    with pytest.raises(type(stop)):
        build(steps.venv)
    assert not steps.venv.ready.exists()
    steps.stop.clear()
    (steps.venv.path / "half-written").touch()
    build(steps.venv)
    assert steps.venv.ready.exists() and not (steps.venv.path / "half-written").exists()


def test_finished_set_up_is_completed_in_place(steps: FakeSteps) -> None:
    build(steps.venv)
    (steps.venv.path / "kept").touch()
    steps.done.clear()
    build(steps.venv)
    assert steps.done[0] == "finding the pinned packages" and "building .venv" not in steps.done
    assert (steps.venv.path / "kept").exists()


def test_update_without_network_leaves_the_venv_whole(steps: FakeSteps) -> None:
    build(steps.venv)
    steps.stop["finding the pinned packages"] = SetupError("no network")
    with pytest.raises(SetupError):
        build(steps.venv)
    assert steps.venv.ready.exists() and not steps.venv.unfinished.exists()


def test_venv_of_another_folder_is_made_again(steps: FakeSteps) -> None:
    build(steps.venv)
    steps.venv.ready.write_text("elsewhere\n")
    steps.done.clear()
    build(steps.venv)
    assert steps.done[0] == "building .venv"


def test_venv_with_a_python_that_is_gone_is_made_again(steps: FakeSteps) -> None:
    build(steps.venv)
    steps.venv.python.unlink()
    steps.venv.python.symlink_to("no-such-python")
    steps.done.clear()
    build(steps.venv)
    assert steps.done[0] == "building .venv"


def test_a_failed_process_is_one_sentence(tmp_path: Path) -> None:
    venv = Venv(tmp_path)
    venv.path.mkdir()
    with pytest.raises(SetupError, match=r"set-up: building \.venv failed"):
        venv._run([sys.executable, "-c", "raise SystemExit(3)"], "building .venv")


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_missing_module_is_named(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> Any:
        return None if name == module else object()

    monkeypatch.setattr(make_venv.importlib.util, "find_spec", find)
    with pytest.raises(SetupError, match=f"no `{module}`.*python3-venv"):
        check_python()


def test_pin_is_the_packages_own(steps: FakeSteps) -> None:
    assert pinned("torch", steps.venv.constraints) == "torch==2.13.0"
    with pytest.raises(SetupError, match="pins no numpy"):
        pinned("numpy", steps.venv.constraints)
