"""Compare completions with speculation on and off over many prompts, in this process or in a separate one.

`python -m tests.full.on_off DTYPE [MODEL TOKENS TEMPERATURE]` prints one row as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from codespec_lab.bench.sites import read_prompts, stdlib_sites

from codespec.api.types import Completion, CompletionRequest, Stats
from codespec.engine.engine import Engine
from codespec.store.machine import HIDING
from tests.full.report import ROOT

TOKENS = 64
BATCH = 8


def read_requests(tokens: int = TOKENS) -> list[CompletionRequest]:
    """Return requests for the prompts of the file in CODESPEC_PROMPTS, or for pieces of the standard library.

    Every third gets half the tokens, so that requests join and leave a batch at different times.
    """
    file = os.environ.get("CODESPEC_PROMPTS")
    prompts = read_prompts(Path(file)) if file else stdlib_sites(164)
    return [
        CompletionRequest(prefix=p.prefix, path=p.path, max_tokens=tokens if i % 3 else tokens // 2, seed=i)
        for i, p in enumerate(prompts)
    ]


def load_drafting(dtype: str, model: str = "") -> Engine:
    """Load an engine that always drafts and reads whole prompts.

    The cost policy would find that this drafter hardly pays, and a run without drafts proves nothing.
    """
    named = {"model": model} if model else {}
    return Engine.load(dtype=dtype, warmup=0, max_batch=BATCH, policy="fixed:8", first_answer_ms=0, **named)


def complete(engine: Engine, requests: list[CompletionRequest], batch: int, **change: Any) -> list[Completion]:
    """Return all completions, `batch` at a time."""
    done: list[Completion] = []
    for start in range(0, len(requests), batch):
        done += engine.complete([replace(r, **change) for r in requests[start : start + batch]])
    return done


def equal(first: list[Completion], second: list[Completion]) -> int:
    """Count the completions that are equal in ids and text."""
    return sum(a.token_ids == b.token_ids and a.text == b.text for a, b in zip(first, second, strict=True))


def total(done: list[Completion]) -> Stats:
    """Return the sum of all statistics."""
    stats = Stats()
    for completion in done:
        stats.add(completion.stats)
    return stats


def compare(engine: Engine, requests: list[CompletionRequest], temperature: float) -> tuple[dict[str, Any], Stats]:
    """Return a report's row of on against off, and the statistics of the run with drafts at batch 1."""
    off = complete(engine, requests, 1, speculate=False, temperature=temperature)
    alone = complete(engine, requests, 1, speculate=True, temperature=temperature)
    together = complete(engine, requests, BATCH, speculate=True, temperature=temperature)
    stats = total(alone)
    row = {
        "prompts": len(requests),
        "on_equals_off_batch_1": equal(alone, off),
        "on_equals_off_batch_8": equal(together, off),
        "stats_batch_1": stats.as_dict(),
        "texts": [hashlib.sha256(repr(done.token_ids).encode()).hexdigest()[:8] for done in off],
    }
    return row, stats


def run_on_off(variables: dict[str, str], *words: str, seconds: float) -> dict[str, Any]:
    """Run `main` in a separate process with these words and variables; return its row and the seconds it took."""
    inherited = {name: value for name, value in os.environ.items() if name not in HIDING}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "tests.full.on_off", *words],
        cwd=ROOT,
        env={**inherited, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**row, "seconds": round(time.perf_counter() - began)}


def main(dtype: str, model: str = "", tokens: str = str(TOKENS // 2), temperature: str = "0") -> None:
    """Print one row; by default greedy with half the tokens, which a slow instruction set can manage."""
    engine = load_drafting(dtype, model)
    row, stats = compare(engine, read_requests(int(tokens)), float(temperature))
    row["stats_batch_1"] = {"committed": stats.committed, "drafted": stats.drafted, "accepted": stats.accepted}
    facts = {"exact": engine.target.exact, "notes": engine.notes}
    print(json.dumps({**row, **facts}))


if __name__ == "__main__":
    main(*sys.argv[1:])
