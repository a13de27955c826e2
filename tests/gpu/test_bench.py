"""`codespec bench decode` on a GPU: all contestants but llama.cpp run, and codespec's text equals its plain text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from codespec_lab.bench.decode.contest import GPU_DTYPES
from codespec_lab.bench.decode.scenario import run_decode_bench
from codespec_lab.bench.settings import DecodeBench

from codespec.api.config import EngineConfig
from tests.gpu.models import gpu

pytestmark = gpu
DEVICE = "cuda"
WORK = "{name} = [1, 2, 3]\n\n\ndef sum_of_{name}(factor):\n    total = 0\n    for value in {name}:\n        total +="


def test_everybody_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespec_lab.bench.steps.ALL_SECONDS", 0.0)
    monkeypatch.setattr("codespec_lab.bench.steps.SWEEP_SECONDS", 0.1)
    prompts = tmp_path / "prompts.jsonl"
    names = ("sizes", "prices", "weights", "colors", "ages", "scores", "lengths", "areas")
    prompts.write_text("".join(json.dumps({"prompt": WORK.format(name=name)}) + "\n" for name in names))
    config = EngineConfig(device=DEVICE, graph_rows=16, warmup=0)
    bench = DecodeBench(
        config=config, prompts=prompts, limit=2, tokens=8, concurrency=(1, 2), samplings=("greedy",), repeats=1
    )
    section = run_decode_bench(bench)["sections"]["own"]
    assert "captured" not in section["note"]
    assert section["configuration"]["machine"].get("gpu")
    told = section["contestants"]
    assert {v["dtype"] for one in told.values() for v in one.get("fastest", {}).values()} == set(GPU_DTYPES)
    assert all("absent" in one for name, one in told.items() if name.startswith("llama.cpp"))
    for cell in section["summary"]["cells"].values():
        rows = cell["kinds"]["all"]["rows"]
        assert {"codespec off", "codespec on", "transformers"} <= set(rows)
        assert ("transformers assisted" in rows) == (cell["concurrency"] == 1)
        own = [row for name, row in rows.items() if name.startswith("codespec")]
        assert all(row["equal"] == row["compared"] > 0 for row in own)
        assert rows["codespec on"]["drafted_a_round"] > 0
