"""Features of the processor and free memory, as the system reports them."""

from __future__ import annotations

from pathlib import Path

import pytest

from codespec.store import machine


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


MEMINFO = "MemTotal: 16000 kB\nMemFree: 10 kB\nMemAvailable: {} kB\nHugePages_Total: 0\nSwapFree: {} kB\n"


@pytest.mark.parametrize(
    ("text", "free"),
    [
        (MEMINFO.format(3000, 2000), 5000 << 10),
        (MEMINFO.format(9000, 0), 8000 << 10),
        (MEMINFO.format(0, 0), 8000 << 10),
        (MEMINFO.format("a few", 0), 8000 << 10),
        ("MemTotal: 16000 kB\n", 8000 << 10),
        ("", 8000 << 10),
        (None, 8000 << 10),
    ],
)
def test_memory_that_is_left(text: str | None, free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "meminfo"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(machine, "MEMORY", file)
    monkeypatch.setattr(machine, "machine_memory", lambda: 8000 << 10)
    assert machine.available_memory() == free
    monkeypatch.setattr(machine, "machine_memory", lambda: None)
    assert machine.available_memory() is None
