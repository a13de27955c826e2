"""Every fault of tools/planted_faults.toml, planted in a copy of the checkout: one of its tests must fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.layout.test_planted_table import FAULTS, ROOT

pytestmark = pytest.mark.full
FOLDERS = ["", "lsp", "grammars", "lab", "weights"]
HANGS = 1800  # seconds: a fault that makes its tests hang is noticed too
FAILED, PASSED = 1, 0  # pytest's exit codes


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of all tracked files, in which git finds them too."""
    folder = tmp_path_factory.mktemp("copy")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    for words in (["init", "--quiet"], ["add", "--all", "--force"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def outcome(copy: Path, tests: list[str]) -> int:
    """Return pytest's exit code of tests in the copy, with the copy's own packages in every process."""
    path = os.pathsep.join(str(copy / name) for name in FOLDERS)
    words = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not full", *tests]
    run = [sys.executable, "-m", "pytest", *words]
    try:
        return subprocess.run(run, cwd=copy, env={**os.environ, "PYTHONPATH": path}, timeout=HANGS).returncode
    except subprocess.TimeoutExpired:
        return FAILED


@pytest.fixture
def planted(copy: Path, fault: dict[str, Any]) -> Iterator[dict[str, Any]]:
    path = copy / fault["file"]
    former = path.read_text(encoding="utf-8")
    path.write_text(former.replace(fault["before"], fault["after"]), encoding="utf-8")
    yield fault
    path.write_text(former, encoding="utf-8")


def test_they_pass_without_a_fault(copy: Path) -> None:
    assert outcome(copy, sorted({test for fault in FAULTS for test in fault["tests"]})) == PASSED


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["name"])
def test_a_test_fails(copy: Path, planted: dict[str, Any]) -> None:
    assert outcome(copy, planted["tests"]) == FAILED
