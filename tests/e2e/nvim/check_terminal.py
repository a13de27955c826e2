"""Neovim in a real terminal."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.e2e.nvim.fixtures import Daemon


def test_in_a_terminal(program: str, daemon: Daemon, tmp_path: Path) -> None:
    out = os.environ.get("TERMINALS", str(tmp_path))
    name = Path(program).parents[1].name
    run = subprocess.run(
        [Path(__file__).parent / "screen.sh", program, out, name, daemon.url, daemon.state],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    for kind in ["ghost", "saved"]:
        assert (Path(out) / f"{name}-{kind}.txt").read_text().strip()
