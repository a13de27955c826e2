"""The recommended model for this machine: one rule from memory, speed and GPU; the speed is measured once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from codespec.store import choice, machine
from codespec.store.catalogue import read_catalogue
from codespec.store.choice import (
    LARGER,
    LARGEST,
    MAX_TOKEN_MS,
    SMALLER,
    STARTER_NAME,
    decide,
    predict_step,
    takes_larger,
)
from codespec.store.machine import measure_step, processor, read_step, write_step
from codespec.user_folders import cache_folder

GB = 1_000_000_000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("memory", "step", "gpu", "model", "why"),
    [
        (16 * GB, 30.0, False, LARGER, "a token of the 1.5B model takes 30 ms here"),
        (16 * GB, MAX_TOKEN_MS, False, LARGER, "takes 45 ms here"),
        (16 * GB, 46.0, False, SMALLER, "takes 46 ms here"),
        (16 * GB, None, False, SMALLER, "has not been measured yet"),
        (16 * GB, inf, False, SMALLER, "the native kernels are not built here"),
        (16 * GB, 10.0, False, LARGEST, "a token of the 7B model will take 44 ms here"),
        (16 * GB, 10.3, False, LARGER, "a token of the 1.5B model takes 10 ms here"),
        (6 * GB, 5.0, False, LARGER, "a token of the 1.5B model takes 5 ms here"),
        (2 * GB, 30.0, False, SMALLER, "the 1.5B model needs more than 2.0 GB of memory"),
        (1 * GB, 30.0, False, STARTER_NAME, "this machine has 1.0 GB of memory"),
        (None, 30.0, False, SMALLER, "the size of this machine's memory is unknown"),
        (25 * GB, None, True, "deepseek-coder-6.7b", "the largest that fits in memory, on a GPU"),
        (200 * GB, 30.0, True, "qwen2.5-coder-32b", "on a GPU"),
        (6 * GB, 30.0, True, LARGER, "takes 30 ms here"),
        (None, None, True, SMALLER, "is unknown"),
    ],
)
def test_the_rule(memory: int | None, step: float | None, gpu: bool, model: str, why: str) -> None:
    found = decide(memory, step, gpu=gpu)
    assert found.model == model and found.why.endswith(why)


def test_a_native_models_step_follows_from_the_bytes_it_reads() -> None:
    entries = read_catalogue()
    names = (SMALLER, LARGER, "qwen2.5-coder-3b-instruct", LARGEST)
    steps = [predict_step(entries[name], 30.0) or 0.0 for name in names]
    assert steps[1] == 30.0 and steps == sorted(steps) and steps[0] > 0
    assert predict_step(entries["qwen2.5-coder-7b"], 30.0) is predict_step(entries[LARGER], inf) is None
    assert predict_step(entries[LARGER], None) is None


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "machine_memory", lambda: 16 * GB)
    assert choice.recommend().model == SMALLER and takes_larger()
    write_step(20.0)
    assert choice.recommend().model == LARGER
    monkeypatch.setattr(choice, "machine_memory", lambda: 2 * GB)
    assert choice.recommend().model == SMALLER and not takes_larger()


def test_what_was_measured_is_kept_for_this_processor_and_this_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_step() is None
    write_step(33.25)
    assert read_step() == 33.25
    monkeypatch.setattr(machine, "version", lambda _: "99.0")
    assert read_step() is None
    write_step(inf)
    assert read_step() == inf
    monkeypatch.undo()


def test_another_processor_is_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    write_step(33.0)
    known = processor()
    for other in (replace(known, name="Other 9000 (6)"), replace(known, cores=known.cores + 1)):
        monkeypatch.setattr(machine, "processor", lambda other=other: other)
        assert read_step() is None


def test_a_corrupt_record_counts_as_none() -> None:
    write_step(33.0)
    (file,) = (cache_folder() / "step_time").iterdir()
    file.write_text("[")
    assert read_step() is None
    write_step(34.0)
    assert read_step() == 34.0


def test_it_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    def run(command: tuple[str, ...], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        return subprocess.CompletedProcess(command, 0, "12.0", "")

    monkeypatch.setattr(subprocess, "run", run)
    lines: list[str] = []
    assert measure_step(lines.append) == measure_step(lines.append) == 12.0
    assert len(calls) == 1 and calls[0][1:] == ("-P", "-m", "codespec.startup.step_speed")
    assert lines == ["measuring once how fast this machine computes a token (some seconds)"]


def test_why_it_could_not_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(machine, "MEASURE", ("/nowhere/python",))
    assert measure_step(lines.append) is None
    assert len(lines) == 2 and lines[1].startswith("the speed of this machine could not be measured (")
    for code, reason in (("print('fast')", "fast"), ("raise SystemExit('no kernel')", "no kernel")):
        monkeypatch.setattr(machine, "MEASURE", (sys.executable, "-c", code))
        assert measure_step(lines.append) is None and reason in lines.pop()
        del lines[2:]
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/x")
    monkeypatch.setattr(machine, "MEASURE", (sys.executable, "-c", "print(12.0)"))
    assert measure_step(lines.append) is None and "/dev/null/x" in lines.pop()
    lines.pop()
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda _: None)
    assert measure_step(lines.append) is None and len(lines) == 2, "without torch nothing is said"
