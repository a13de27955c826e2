"""The starter target enlarged to the size of Qwen2.5-0.5B: the same function, and its step cost relative to the
original.

Writes docs/shapes.json: milliseconds of a forward of 1 to 16 rows after 500 tokens, and their ratios.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import pytest
import torch

from codespec.contract.engine_config import SHIPPED
from codespec.models.enlarge import SHAPES
from codespec.models.language_model import LanguageModel
from codespec.models.loader import load_model
from codespec.models.rows import Rows
from codespec.pair.sample import held_out_files
from tests.full.report import write_report

pytestmark = pytest.mark.full
SHAPE = SHAPES["qwen2.5-0.5b"]
PREFIX, REPEATS = 500, 12
ROWS: dict[str, Any] = {}


def logits(model: LanguageModel, ids: list[int]) -> torch.Tensor:
    """Return the logits of two sequences in one forward, then of rows after both."""
    model.allocate(2, 1024)
    for slot in (0, 1):
        model.admit(slot, 1024)
    first = model.forward([Rows(0, 0, ids[:PREFIX], keep=64), Rows(1, 0, ids[100:380], keep=64)])
    behind = [Rows(0, PREFIX, ids[PREFIX : PREFIX + 8], keep=8), Rows(1, 280, ids[380:381])]
    return torch.cat([first, model.forward(behind)])


def milliseconds(model: LanguageModel, ids: list[int]) -> dict[int, float]:
    """Return the median milliseconds of a forward by number of rows after PREFIX; the numbers take turns."""
    found: dict[int, list[float]] = {rows: [] for rows in (1, 2, 4, 8, 16)}
    for _ in range(REPEATS):
        for rows, times in found.items():
            start = time.perf_counter()
            model.forward([Rows(0, PREFIX, ids[PREFIX : PREFIX + rows], keep=rows)])
            times.append(1000 * (time.perf_counter() - start))
    return {rows: round(statistics.median(times), 1) for rows, times in found.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_real_size_has_the_small_ones_function(dtype: str) -> None:
    torch.set_num_threads(1)
    small, large = (load_model(str(SHIPPED / "target"), dtype=dtype, shape=shape) for shape in (None, SHAPE))
    text = next(text for _, file in held_out_files() if len(text := file.read_text(encoding="utf-8")) > 8000)
    ids = small.tokenizer.encode(text)
    wanted, got = logits(small, ids), logits(large, ids)
    own = wanted.shape[1]
    gap = float((got[:, :own] - wanted).abs().max())
    same = int((got.argmax(1) == wanted.argmax(1)).sum())
    times = milliseconds(large, ids)
    ROWS[dtype] = {
        "shape": large.spec.simulated,
        "largest_difference_of_logits": gap,
        "largest_logit": float(wanted.abs().max()),
        "same_choice": [same, len(wanted)],
        "ms_of_rows": times,
        "own_ms_of_rows": milliseconds(small, ids),
        "eight_rows_by_one": round(times[8] / times[1], 2),
    }
    write_report("shapes", "make test-full", ROWS)
    assert bool((got[:, own:] == -torch.inf).all())
    if dtype == "float32":
        assert gap <= 1e-4 and same == len(wanted)
    else:  # norms round to bfloat16 after scaling
        assert gap <= 0.02 * float(wanted.abs().max()) and same >= 0.95 * len(wanted)
    assert times[8] < 4 * times[1], "eight rows read the same weights as one"
