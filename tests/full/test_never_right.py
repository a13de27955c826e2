"""Drafts that are never right, for five minutes of requests: what speculation then costs what a user receives.

Each prompt is completed with and without speculation, in alternating order, by one engine with its own policy, costs
and budget. The proposer does all its work and its drafts are replaced by characters that never occur. Writes
docs/never_right.json. TEST_MINUTES sets another length.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pytest
from codespec_lab.bench.decode.codespec_engine import Spoiler

from codespec.engine.engine import Engine
from codespec.store.choice import SMALLER
from codespec.store.pulled import find_pulled
from tests.full.on_off import read_requests, total
from tests.full.report import write_report

pytestmark = pytest.mark.full
MINUTES = float(os.environ.get("TEST_MINUTES", "5"))
TOKENS = 96
MIN, MIN_OF_A_TEXT = 0.95, 0.8  # the aims are 0.98 and 0.9; a shared machine varies by more than that


def test_what_wrong_drafts_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(Path(os.environ["TEST_PULLED_MODELS"]).parent))
    if find_pulled(SMALLER) is None:
        pytest.skip(f"{SMALLER} has not been pulled")
    engine = Engine.load(model=SMALLER, dtype="native", first_answer_ms=0)
    engine.proposers = tuple(map(Spoiler, engine.proposers))
    requests = read_requests(TOKENS)
    engine.complete([requests[0]])  # warm both ways
    off, on, drafted = [], [], 0
    end = time.perf_counter() + 60 * MINUTES
    while time.perf_counter() < end:
        request = requests[len(on) % len(requests)]
        engine.complete([replace(request, max_tokens=1)])  # so that both find the prompt in the cache
        seconds: dict[bool, float] = {}
        for speculate in (True, False) if len(on) % 2 else (False, True):
            began = time.perf_counter()
            done = engine.complete([replace(request, speculate=speculate)])
            seconds[speculate] = time.perf_counter() - began
            stats = total(done)
            assert not stats.accepted, "a draft of characters that never occur was accepted"
            drafted += stats.drafted
        off.append(seconds[False])
        on.append(seconds[True])
    ratios = [plain / drafting for plain, drafting in zip(off, on, strict=True)]
    of_texts = {"min": min(ratios), "p5": quantiles(ratios, n=20)[0], "median": median(ratios)}
    row: dict[str, Any] = {
        "model": SMALLER,
        "texts": len(on),
        "drafted": drafted,
        "on_by_off": round(sum(off) / sum(on), 4),
        "of_texts": {name: round(value, 4) for name, value in of_texts.items()},
    }
    write_report("never_right", "make test-full PROMPTS=FILE", [row])
    assert drafted, "a run without drafts proves nothing"
    assert row["on_by_off"] >= MIN and row["of_texts"]["p5"] >= MIN_OF_A_TEXT, row
