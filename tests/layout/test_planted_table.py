"""The table of planted faults: each stands in its file, and the tests that must notice it are there."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAULTS = tomllib.loads((ROOT / "tools" / "planted_faults.toml").read_text(encoding="utf-8"))["fault"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["name"])
def test_a_fault_can_be_planted_and_has_its_tests(fault: dict[str, Any]) -> None:
    source = (ROOT / fault["file"]).read_text(encoding="utf-8")
    assert source.count(fault["before"]) == 1 and fault["before"] != fault["after"]
    compile(source.replace(fault["before"], fault["after"]), fault["file"], "exec")  # else every importer would fail
    assert fault["tests"] and all((ROOT / test).is_file() for test in fault["tests"])
