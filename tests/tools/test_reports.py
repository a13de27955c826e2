"""Reports outside the benchmarks name the processor too: those of the large runs and the kernels' table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from codespec.store.machine import processor
from tests.full import report
from tools import tune_kernels


def test_a_large_run_names_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "ROOT", tmp_path)
    found = json.loads(report.write_report("lossless", "make test-full", [1]).read_text(encoding="utf-8"))
    assert found["processor"] == processor().label and found["rows"] == [1]


def test_the_kernels_table_names_the_processor(tmp_path: Path) -> None:
    assert tune_kernels.main(["--rehearse", "--json", str(tmp_path / "kernels.json")]) == 0
    found = json.loads((tmp_path / "kernels.json").read_text(encoding="utf-8"))
    assert found["processor"] == processor().label
