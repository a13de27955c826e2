"""The processor and free memory, as the system reports them; variables that hide a part of the processor."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from codespec.store import machine
from codespec.store.machine import HIDING, Processor, processor, read_cpuinfo


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


@pytest.fixture(autouse=True)
def nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables from the environment."""
    for name in HIDING:
        monkeypatch.delenv(name, raising=False)


def cpuinfo(flags: str, places: list[tuple[int, int]]) -> str:
    """Return a list as Linux prints it: one block for each (socket, core)."""
    blocks = [
        f"processor\t: {number}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\n"
        f"model name\t: Some Processor @ 2 GHz\nstepping\t: 2\nphysical id\t: {socket}\ncore id\t\t: {core}\n"
        f"flags\t\t: {flags}\nbogomips\t: 4000.00\n"
        for number, (socket, core) in enumerate(places)
    ]
    return "\n".join(blocks) + "\n"


TWO_SOCKETS = cpuinfo("fpu avx2 avx512f", [(socket, core) for _ in range(2) for socket in (0, 1) for core in range(4)])


@pytest.mark.parametrize(("usable", "cores"), [(16, 8), (6, 3), (1, 1)])
def test_two_threads_a_core_on_two_sockets(usable: int, cores: int) -> None:
    """Sixteen logical processors are eight cores: the same core number on another socket is another core."""
    assert read_cpuinfo(TWO_SOCKETS, usable) == ("Some Processor @ 2 GHz (6/207/2)", ("avx512f", "avx2"), cores)


def test_one_thread_a_core() -> None:
    assert read_cpuinfo(cpuinfo("avx2", [(0, 0), (0, 1)]), 2)[2] == 2


def test_matrix_units_come_first_and_unknown_flags_are_left_out() -> None:
    flags = "fpu avx2 avx512f avx_vnni avx512_bf16 amx_bf16 avx512_fp16 amx_tile amx_int8"
    _, features, _ = read_cpuinfo(cpuinfo(flags, [(0, 0)]), 1)
    assert features == ("amx_bf16", "amx_tile", "avx512_fp16", "avx512_bf16", "avx512f", "avx_vnni", "avx2")


def test_arm_lists_features_and_neither_name_nor_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_name_elsewhere", lambda: "aarch64")
    block = "processor\t: {}\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd crc32\nCPU part\t: 0xd0c\n"
    assert read_cpuinfo("\n".join(block.format(n) for n in range(4)), 4) == ("aarch64 (0xd0c)", ("asimd",), 4)


def test_of_an_empty_list_there_is_still_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_name_elsewhere", lambda: "some machine")
    assert read_cpuinfo("", 3) == read_cpuinfo("\n\n", 3) == ("some machine", (), 3)


@pytest.fixture
def list_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Write the file that replaces this machine's list."""
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(machine, "CPUINFO", file)
    machine._machine.cache_clear()
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: range(2), raising=False)
    return file


def test_hidden_parts_are_in_the_label(list_of: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read at every call, because a process may hide a part after the first one."""
    list_of.write_text(cpuinfo("avx2 avx512f", [(0, 0), (0, 1)]), encoding="utf-8")
    known = "Some Processor @ 2 GHz (6/207/2), avx512f avx2, 2 core(s)"
    assert processor().label == known
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert processor().label == f"{known}, ONEDNN_MAX_CPU_ISA=AVX2"
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert processor().label == f"{known}, ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=default"
    machine._machine.cache_clear()


def test_without_a_list_there_is_a_label(list_of: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_name_elsewhere", lambda: "some machine")
    assert not list_of.exists() and processor().label == f"some machine, {platform.machine()}, 2 core(s)"
    machine._machine.cache_clear()
