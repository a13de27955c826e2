"""`make gpu` runs on a machine with torch, transformers, Triton and pytest, but without the editor side's packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ABSENT = ("platformdirs", "tree_sitter", "pygls", "lsprotocol", "prometheus_client")
# Python imports this module at startup.
SITE = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        package = name.partition(".")[0]
        if package in {ABSENT!r} or package.startswith("tree_sitter_"):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""
EVERYTHING = """
import runpy, sys
for module, *words in (
    ["tools.gpu", "--list"],
    ["codespec_lab", "bench", "decode", "--help"],
    ["pytest", "-q", "tests/gpu", "--confcutdir", "tests/gpu", "--collect-only"],
):
    sys.argv = [module, *words]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert not end.code, module
from codespec_grammars import ContextTracker, read_surroundings
import codespec_lab.bench.decode.scenario
from codespec.user_folders import cache_folder
read_surroundings("python", b"def f():", b"")
print(ContextTracker("python", b"def f():").context(), cache_folder())
"""


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """Return the environment of an interpreter that cannot import ABSENT."""
    (tmp_path / "sitecustomize.py").write_text(SITE)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    folders = (tmp_path, ROOT, ROOT / "lsp", ROOT / "grammars", ROOT / "lab", ROOT / "weights")
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, folders)), "PYTHONDONTWRITEBYTECODE": "1"}


def test_it_starts_without_the_editors_packages(bare: dict[str, str]) -> None:
    """All in one process: importing torch is most of each start."""
    words = [sys.executable, "-c", EVERYTHING]
    done = subprocess.run(words, cwd=ROOT, env=bare, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for printed in ("open  kernels", "--concurrency", "Cursor(", "tests/gpu/test_bench.py"):
        assert printed in done.stdout
