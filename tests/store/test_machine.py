"""Features of the processor and free memory, as the system reports them."""

from __future__ import annotations

from pathlib import Path

import pytest

from codespec.store import machine
from codespec.store.processor import Processor


@pytest.mark.parametrize(
    ("features", "can"),
    [(("avx512_bf16", "avx2"), True), (("amx_bf16",), True), (("avx2",), False), ((), False)],
)
def test_bfloat16_only_where_it_is_multiplied(
    features: tuple[str, ...], can: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "processor", lambda: Processor("any", features, (), 1))
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
