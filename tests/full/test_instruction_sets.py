"""The large losslessness run under lower instruction sets, each in a process of its own, because torch's libraries read
the variables once: speculation on = off on every prompt, greedy, half the tokens.

`make test-full PROMPTS=FILE`, as for tests/full/test_lossless.py. Writes docs/instruction_sets.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from codespec.models.processor import HIDING
from tests.full.report import ROOT, write_report

pytestmark = pytest.mark.full
SECONDS = 3600
ONEDNN, ATEN = "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"
LOWERED = [
    {ONEDNN: "AVX2"},
    {ONEDNN: "AVX512_CORE"},
    {ONEDNN: "AVX512_CORE_BF16"},
    {ONEDNN: "AVX2", ATEN: "avx2"},
]
ROWS: list[dict[str, Any]] = []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variables", LOWERED, ids=lambda variables: " ".join(map("=".join, variables.items())))
def test_on_equals_off(variables: dict[str, str], dtype: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if name not in HIDING}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "tests.full.on_off", dtype],
        cwd=ROOT,
        env={**inherited, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    del row["texts"]
    ROWS.append({"variables": variables, "dtype": dtype, **row, "seconds": round(time.perf_counter() - began)})
    write_report("instruction_sets", "make test-full PROMPTS=FILE", ROWS)
    assert row["exact"], row["notes"]
    assert row["stats_batch_1"]["drafted"] >= 500, "a run without drafts proves nothing"
    assert row["on_equals_off_batch_1"] == row["on_equals_off_batch_8"] == row["prompts"]
