"""The large losslessness run under lower instruction sets: on = off on every prompt, greedy, half the tokens.

Each runs in a separate process, because torch's libraries read the variables once. `make test-full PROMPTS=FILE`, as
for tests/full/test_lossless.py. Writes docs/instruction_sets.json.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.full.on_off import run_on_off
from tests.full.report import write_report

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
    row = run_on_off(variables, dtype, seconds=SECONDS)
    del row["texts"]
    ROWS.append({"variables": variables, "dtype": dtype, **row})
    write_report("instruction_sets", "make test-full PROMPTS=FILE", ROWS)
    assert row["exact"], row["notes"]
    assert row["stats_batch_1"]["drafted"] >= 500, "a run without drafts proves nothing"
    assert row["on_equals_off_batch_1"] == row["on_equals_off_batch_8"] == row["prompts"]
