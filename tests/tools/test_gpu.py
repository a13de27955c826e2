"""`make gpu` runs its parts one by one, resumes, and reports failures. The parts here are small commands, without a
GPU.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from codespec_lab.bench.shapes import SHAPES

from codespec.cli import build_parser
from codespec.cli.options import engine_config
from codespec.store.machine import processor
from tests.server.daemons import wait_for
from tools import gpu
from tools.gpu import Budget, Part, Runner

WRITES = 'import sys; open(sys.argv[1], "w").write(\'{"ms": 3}\')'
FIGURES = Part("figures", ("-c", WRITES, "{json}"))
FAILS = Part("fails", ("-c", "print('no such kernel'); raise SystemExit(3)"))
SILENT = Part("silent", ("-c", "pass"))
SLOW = Part("slow", ())


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


@pytest.mark.parametrize("part,message", [(FAILS, "no such kernel"), (SILENT, "")])
def test_a_part_that_fails_is_tried_again(runner: Runner, part: Part, message: str) -> None:
    assert not runner.run(part)
    assert not runner.is_done(part)
    assert message in str(found(runner, part)["message"])


def test_a_part_that_takes_too_long_is_stopped_with_all_its_processes(runner: Runner, tmp_path: Path) -> None:
    starts = (
        "import subprocess; child = subprocess.Popen(['sleep', '1000']); "
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid)); print('began', flush=True); child.wait()"
    )
    assert not runner.run(Part("slow", ("-c", starts)), 2)
    assert "began" in str(found(runner, SLOW)["message"])
    state = Path("/proc", (tmp_path / "child").read_text(), "status")
    assert wait_for(lambda: not state.exists() or "State:\tZ" in state.read_text())


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
    assert "torch finds no GPU" in capsys.readouterr().out


@pytest.mark.parametrize("rehearsal", [False, True])
@pytest.mark.parametrize("part", [p for p in gpu.parts() if "codespec_lab" in p.arguments], ids=lambda part: part.name)
def test_the_commands_are_understood(part: Part, rehearsal: bool, tmp_path: Path) -> None:
    """Parsed by the commands' own parsers; no command has a flag that `bench decode` rejects."""
    words = Runner("cuda", tmp_path, rehearsal).words(part)
    assert words[:2] == ["-m", "codespec_lab"]
    options = build_parser().parse_args(words[2:])
    config = engine_config(options)
    assert config.device == "cuda"
    shape = getattr(options, "target_shape", None) or options.shape
    assert shape == "qwen2.5-0.5b" if rehearsal else shape in gpu.SHAPES
    assert not part.name.startswith("decode") or (options.mode, options.dtype, options.threads) == (None, None, None)


def test_parts_have_names_of_their_own_and_shapes_that_exist() -> None:
    names = [part.name for part in gpu.parts()]
    assert len(set(names)) == len(names)
    assert set(gpu.SHAPES) <= set(SHAPES)


class Clock:
    """A clock that only the parts advance: each takes the seconds at the end of its name, but at most its limit."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[tuple[str, float]] = []

    def run(self, part: Part, seconds: float) -> bool:
        taken = min(float(part.name.rpartition("-")[2]), seconds)
        self.now += taken
        self.ran.append((part.name, seconds))
        return taken < seconds


def test_a_run_ends_within_its_ten_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, folder = Clock(), tmp_path / "out"
    folder.mkdir()
    monkeypatch.setattr(Runner, "run", lambda self, part, seconds: clock.run(part, seconds))
    wanted = [Part(f"{name}-{seconds}", ()) for name, seconds in zip("abcd", (200, 250, 400, 1), strict=True)]
    budget = Budget(600, lambda: clock.now)
    assert gpu.run_all(Runner("cpu", folder), wanted, budget) == 1, "the third is ended"
    assert clock.ran == [("a-200", 570), ("b-250", 390), ("c-400", 140)]
    assert clock.now <= 600 - gpu.RESERVE, "d was not begun: there was time for results only"


def test_results_come_back_in_one_file_after_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "parts", lambda: [FIGURES, FAILS])
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    (earlier / "figures.json").write_text('{"whole": true, "found": 1}')
    monkeypatch.setattr(gpu, "RESULTS", earlier)
    monkeypatch.setenv(gpu.COMMIT, "abc1234")
    out = tmp_path / "out" / "gpu.tar.gz"
    assert gpu.main(["--rehearse", "--results", str(tmp_path / "work"), "--tar", str(out)]) == 1
    assert [file.name for file in out.parent.iterdir()] == ["gpu.tar.gz"]
    with tarfile.open(out) as tar:
        assert tar.getnames() == ["fails.json", "figures.json"], "what was done before was taken along, not done again"
    failed = json.loads((tmp_path / "work" / "fails.json").read_text())
    assert failed["commit"] == "abc1234"


def test_the_commits_variable_is_no_setting_of_codespecs() -> None:
    """The parts inherit it, and codespec rejects unknown CODESPEC_* variables."""
    assert not gpu.COMMIT.startswith("CODESPEC_")


def test_parts_that_end_themselves_are_told_how_long(tmp_path: Path) -> None:
    told = Part("told", ("-c", "import sys; open(sys.argv[1], 'w').write(sys.argv[2])", "{json}", "{minutes}"))
    runner = Runner("cpu", tmp_path)
    assert runner.run(told, 400)
    assert found(runner, told)["found"] == 5


@pytest.mark.parametrize("part", [p for p in gpu.parts() if "codespec_lab" in p.arguments], ids=lambda part: part.name)
def test_a_pulled_model_changes_no_figure(part: Part) -> None:
    assert part.arguments[4:6] == ("--model", "starter")


def test_what_failed_before_comes_last_and_a_part_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    wanted = [Part("tests-400", (), most=300), Part("step-100", ()), Part("decode-50", ())]
    (tmp_path / "tests-400.json").write_text('{"whole": false}')
    monkeypatch.setattr(gpu, "parts", lambda: wanted)
    monkeypatch.setattr(Runner, "run", lambda self, part, seconds: clock.run(part, seconds))
    monkeypatch.setattr(gpu, "Budget", lambda seconds: Budget(seconds, lambda: clock.now))
    assert gpu.main(["--rehearse", "--results", str(tmp_path), "--minutes", "10"]) == 1
    assert clock.ran == [("step-100", 570), ("decode-50", 490), ("tests-400", 300)]
