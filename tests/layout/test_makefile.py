"""The Makefile's own output: its list of targets, and one sentence if Python is missing or too old."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ["help", "demo", "serve", "test", "test-torch", "test-lab", "test-native", "test-full", "fuzz", "e2e", "gpu"]
TARGETS += ["dist", "lint", "clean"]


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name[:4] != "MAKE" and name != "PYTHON"}
    return subprocess.run(["make", *arguments], cwd=folder, env=kept, capture_output=True, text=True, timeout=60)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return the files that make reads, with a set-up that only prints that it ran."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").touch()
    (tmp_path / "tools" / "make_venv.py").write_text(
        "import pathlib, sys\n"
        "pathlib.Path('.venv/bin').mkdir(parents=True, exist_ok=True)\n"
        "python = pathlib.Path('.venv/bin/python')\n"
        "python.write_text('#!/bin/sh\\necho ran \"$@\"\\n')\n"
        "python.chmod(0o755)\n"
        "for mark in ['light'] + ['ready'] * (sys.argv[1:] == []):\n"
        "    pathlib.Path(f'.venv/.codespec-{mark}').write_text(str(pathlib.Path.cwd()) + '\\n')\n"
        "print('set up', *sys.argv[1:])\n"
    )
    return tmp_path


def test_help_is_the_default_and_lists_every_target(checkout: Path) -> None:
    done = make(checkout)
    assert [line.split()[1] for line in done.stdout.splitlines()] == TARGETS


def test_set_up_runs_once_and_again_when_the_pins_change(checkout: Path) -> None:
    assert make(checkout, "demo").stdout == "set up light\nran -m codespec_lab.commands.demo\n"
    assert make(checkout, "demo").stdout == "ran -m codespec_lab.commands.demo\n"
    pins = checkout / "constraints.txt"
    later = (checkout / ".venv" / ".codespec-light").stat().st_mtime + 5
    os.utime(pins, (later, later))
    assert make(checkout, "demo").stdout.startswith("set up light\n")


def test_moved_checkout_is_set_up_again(checkout: Path, tmp_path: Path) -> None:
    make(checkout, "demo")
    (checkout / ".venv" / ".codespec-light").write_text("elsewhere\n")
    assert make(checkout, "demo").stdout.startswith("set up light\n")


def test_tests_have_the_whole_set_up_after_the_demos(checkout: Path) -> None:
    assert make(checkout, "demo").stdout.startswith("set up light\n")
    assert make(checkout, "fuzz").stdout.startswith("set up\n")
    assert make(checkout, "demo", "fuzz").stdout == "ran -m codespec_lab.commands.demo\nran -m tools.fuzz\n"


def test_failed_set_up_runs_nothing(checkout: Path) -> None:
    (checkout / "tools" / "make_venv.py").write_text("raise SystemExit(1)")
    done = make(checkout, "demo")
    assert done.returncode == 2 and "ran" not in done.stdout


@pytest.mark.parametrize(("script", "words"), [(None, "there is no"), ("#!/bin/sh\nexit 1\n", "is older")])
def test_unfit_python_is_one_sentence(script: str | None, words: str, checkout: Path) -> None:
    python = checkout / "python9"
    if script:
        python.write_text(script)
        python.chmod(0o755)
    for target in ("demo", "test", "e2e"):
        done = make(checkout, target, f"PYTHON={python}")
        message = [line for line in done.stderr.splitlines() if not line.startswith("make:")]
        assert done.returncode == 2 and len(message) == 1 and words in message[0]


def test_prompts_reach_the_full_run(checkout: Path) -> None:
    make(checkout, "fuzz")
    (checkout / ".venv" / "bin" / "python").write_text('#!/bin/sh\necho "$CODESPEC_PROMPTS" "$@"\n')
    done = make(checkout, "test-full", "PROMPTS=some file.jsonl")
    assert done.stdout.splitlines()[-1] == "some file.jsonl -m pytest -q -m full or hypothesis"


def test_every_folder_of_tests_is_in_one_part() -> None:
    (parts,) = re.findall(r"^PARTS\s+= (.+) lint$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    done = make(ROOT, "-n", "-o", ".venv/.codespec-ready", "-o", ".venv/.codespec-light", *parts.split())
    words = [word for line in done.stdout.splitlines() if " -m pytest " in line for word in line.split()[7:]]
    left = {word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")}
    named = [word for word in words if not word.startswith("--ignore=")]
    folders = {f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if any(path.rglob("test_*.py"))} - {
        "tests/tools"
    }
    plugins = {f"plugins/{path.parent.name}/tests" for path in (ROOT / "plugins").glob("*/pyproject.toml")}
    assert len(named) == len(set(named)), named
    assert {*folders, *plugins} <= set(named) and "lab/tests" not in named
    torch = make(ROOT, "-n", "-o", ".venv/.codespec-ready", "-o", ".venv/.codespec-light", "test-torch").stdout
    assert left == set(torch.splitlines()[-1].split()[7:]) and len(left) > 15


def test_ci_runs_every_target_of_tests() -> None:
    """`make gpu`, `fuzz` and `test-full` need what CI has not: a GPU, hours."""
    run = (ROOT / ".ci" / "run").read_text()
    named = {word for words in re.findall(r"^make ([^>|&\n]+)", run, re.MULTILINE) for word in words.split()}
    assert named - {"-k"} == {"test", "test-torch", "test-native", "test-lab", "e2e"}
