"""Random formats, sizes and bytes: a sentence or a matrix, never a crash; at length with sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from codespec_native.build import build

from native.tests.fuzz import fuzz

SEED = os.environ.get("FUZZ_SEED", "2")


def test_damaged_matrices_are_a_sentence_or_packed() -> None:
    seen = fuzz(cases=400, seed=1)
    assert seen["packed"] > 50 and seen["refused"] > 50


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="preloads the sanitizer as Linux does")
def test_damaged_matrices_touch_no_memory_beyond_their_own(tmp_path: Path) -> None:
    library = tmp_path / "codespec.so"
    build(library, options=("-fsanitize=address,undefined", "-fno-sanitize-recover", "-O1", "-DONE_KERNEL"))
    words = ["cc", "-print-file-name=libasan.so", "-print-file-name=libubsan.so"]
    runtimes = [
        subprocess.run([words[0], word], capture_output=True, text=True, check=True).stdout.strip()
        for word in words[1:]
    ]
    environment = {**os.environ, "LD_PRELOAD": " ".join(runtimes), "ASAN_OPTIONS": "detect_leaks=0"}
    command = [sys.executable, "-m", "native.tests.fuzz", "4000", SEED, str(library)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "packed" in done.stdout
