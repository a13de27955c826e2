"""The recommended number format follows what the processor says it can do."""

from __future__ import annotations

from pathlib import Path

import pytest

from codespec.model_folders import machine


@pytest.mark.parametrize(
    ("flags", "can"), [("avx2 avx512_bf16 fma", True), ("amx_bf16", True), ("avx2 fma", False), (None, False)]
)
def test_bfloat16_only_where_it_is_multiplied(
    flags: str | None, can: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpuinfo"
    if flags is not None:
        file.write_text(f"flags : {flags}\n")
    monkeypatch.setattr(machine, "PROCESSOR", file)
    assert machine.computes_bfloat16() is can
