"""`make gpu`: parts run one by one, resume, and say what failed. The parts here are small commands, without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from codespec.cli.main import build_parser
from codespec.cli.options import engine_config
from codespec.models.processor import processor
from codespec.models.shapes import SHAPES
from tools import gpu
from tools.gpu import Part, Runner

WRITES = 'import sys; open(sys.argv[1], "w").write(\'{"ms": 3}\')'
FIGURES = Part("figures", ("-c", WRITES, "{json}"))
FAILS = Part("fails", ("-c", "print('no such kernel'); raise SystemExit(3)"))
SILENT = Part("silent", ("-c", "pass"))
SLOW = Part("slow", ("-c", "import time; print('began', flush=True); time.sleep(60)"))


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner("cpu", tmp_path)


def found(runner: Runner, part: Part) -> dict[str, object]:
    read: dict[str, object] = json.loads(runner.result(part).read_text(encoding="utf-8"))
    return read


def test_a_part_keeps_its_figures_and_where_they_are_from(runner: Runner) -> None:
    assert not runner.is_done(FIGURES)
    assert runner.run(FIGURES)
    assert runner.is_done(FIGURES)
    kept = found(runner, FIGURES)
    assert kept["found"] == {"ms": 3}
    assert kept["device"] == "cpu"
    assert kept["processor"] == processor().label
    assert str(kept["command"]).startswith("python -c")
    assert {"commit", "date", "seconds"} <= set(kept)
    assert str(runner.folder) not in json.dumps(kept), "a result names no folder of this machine"


@pytest.mark.parametrize("part,said", [(FAILS, "no such kernel"), (SILENT, "")])
def test_a_part_that_fails_is_tried_again(runner: Runner, part: Part, said: str) -> None:
    assert not runner.run(part)
    assert not runner.is_done(part)
    assert said in str(found(runner, part)["said"])


def test_a_part_that_takes_too_long_is_stopped(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "LIMIT", 2)
    assert not runner.run(SLOW)
    assert "began" in str(found(runner, SLOW)["said"])


def test_a_test_runs_counts(runner: Runner, tmp_path: Path) -> None:
    report = '<testsuites><testsuite tests="5" failures="1" errors="0" skipped="2"/></testsuites>'
    writes = f"import sys; open(sys.argv[1], 'w').write('{report}')"
    part = Part("tests", ("-c", writes, "{json}"))
    assert runner.run(part)
    assert found(runner, part)["found"] == {"tests": 5, "failures": 1, "errors": 0, "skipped": 2}


def test_only_what_is_open_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "parts", lambda: [FIGURES, FAILS])
    arguments = ["--rehearse", "--results", str(tmp_path)]
    assert gpu.main(arguments) == 1
    first = (tmp_path / "figures.json").stat().st_mtime_ns
    assert gpu.main(arguments) == 1
    assert (tmp_path / "figures.json").stat().st_mtime_ns == first
    assert gpu.main([*arguments, "--only", "figures"]) == 0
    assert (tmp_path / "figures.json").stat().st_mtime_ns > first
    assert gpu.main([*arguments, "--minutes", "0"]) == 0, "nothing is begun that late"


def test_the_list_says_what_is_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "parts", lambda: [FIGURES, FAILS])
    gpu.main(["--rehearse", "--results", str(tmp_path), "--only", "figures"])
    capsys.readouterr()
    gpu.main(["--list", "--results", str(tmp_path)])
    assert capsys.readouterr().out.splitlines() == ["done  figures", "open  fails"]


def test_without_a_gpu_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "_gpu", lambda: "")
    assert gpu.main(["--results", str(tmp_path)]) == 1
    assert "no GPU here" in capsys.readouterr().out


@pytest.mark.parametrize("rehearsal", [False, True])
@pytest.mark.parametrize("part", [p for p in gpu.parts() if "codespec" in p.arguments], ids=lambda part: part.name)
def test_the_commands_are_understood(part: Part, rehearsal: bool, tmp_path: Path) -> None:
    """As typed, by the command's own parser; the flags that `bench decode` refuses are not among them."""
    words = Runner("cuda", tmp_path, rehearsal).words(part)
    assert words[:2] == ["-m", "codespec"]
    options = build_parser().parse_args(words[2:])
    config = engine_config(options)
    assert config.device == "cuda"
    assert config.target_shape == "qwen2.5-0.5b" if rehearsal else config.target_shape in gpu.SHAPES
    assert not part.name.startswith("decode") or (options.mode, options.dtype, options.threads) == (None, None, None)


def test_parts_have_names_of_their_own_and_shapes_that_exist() -> None:
    names = [part.name for part in gpu.parts()]
    assert len(set(names)) == len(names)
    assert set(gpu.SHAPES) <= set(SHAPES)
