"""The Triton kernels, checked on a CPU with Triton's interpreter in a separate process.

This proves the formula, the masks, the addresses and the order of summation. Properties that only a GPU can show (its
instructions keep that order, memory is read in time) are in tests/gpu.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = Path(__file__).parent / "kernels"


def interpret(examples: int) -> subprocess.CompletedProcess[str]:
    """Run the tests next to this file in the interpreter, with this many examples per property."""
    chosen = {"TRITON_INTERPRET": "1", "CODESPEC_EXAMPLES": str(examples)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(KERNELS)]
    return subprocess.run(
        command, cwd=KERNELS.parents[3], env=os.environ | chosen, capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernels_in_the_interpreter() -> None:
    done = interpret(examples=3)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
