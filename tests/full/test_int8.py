"""The large losslessness run of the catalogue's coding models in int8, here and under lower instruction sets.

On = off on every prompt, greedy and sampled, at batch 1 and 8; also counts the texts that are equal under all
instruction sets. `make test-full PROMPTS=FILE`, as for tests/full/test_lossless.py, after `codespec models pull`;
missing models are skipped. Writes docs/int8.json. TEST_TEXT_TOKENS sets the length of the texts: a slow machine takes
hours.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from codespec.store.choice import LARGER, SMALLER
from codespec.store.pulled import find_pulled
from tests.full.on_off import run_on_off
from tests.full.report import write_report

pytestmark = pytest.mark.full
SECONDS = 4 * 3600
TOKENS = os.environ.get("TEST_TEXT_TOKENS", "24")
ONEDNN, ATEN = "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"
SETS: list[dict[str, str]] = [{}, {ONEDNN: "AVX2", ATEN: "avx2"}, {ONEDNN: "SSE41", ATEN: "default"}]
ROWS: list[dict[str, Any]] = []
TEXTS: dict[tuple[str, str], list[list[str]]] = {}


@pytest.mark.parametrize("temperature", ["0", "0.8"])
@pytest.mark.parametrize("model", [SMALLER, LARGER])
@pytest.mark.parametrize("variables", SETS, ids=lambda variables: " ".join(map("=".join, variables.items())) or "own")
def test_on_equals_off(
    variables: dict[str, str], model: str, temperature: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(Path(os.environ["TEST_PULLED_MODELS"]).parent))
    if find_pulled(model) is None:
        pytest.skip(f"{model} has not been pulled")
    row = run_on_off(variables, "int8", model, TOKENS, temperature, seconds=SECONDS)
    texts = TEXTS.setdefault((model, temperature), [])
    texts.append(row.pop("texts"))
    alike = sum(a == b for a, b in zip(texts[0], texts[-1], strict=True))
    named = {"model": model, "tokens": int(TOKENS), "temperature": float(temperature), "variables": variables}
    ROWS.append({**named, **row, "same_as_first_set": alike})
    write_report("int8", "make test-full PROMPTS=FILE", ROWS)
    assert row["exact"] and row["integer_kernels"], row["notes"]
    assert row["stats_batch_1"]["drafted"] >= 500, "a run without drafts proves nothing"
    assert row["on_equals_off_batch_1"] == row["on_equals_off_batch_8"] == row["prompts"]
