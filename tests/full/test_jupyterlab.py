"""JupyterLab with codespec's plugin in Chromium (tests/e2e/jupyter.sh), which installs Jupyter first."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.full
def test_ghost_text_appears_in_a_cell_and_is_accepted() -> None:
    done = subprocess.run([ROOT / "tests/e2e/jupyter.sh"], capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
