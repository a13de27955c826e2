"""Query this machine's memory and processor, and choose how many tokens of context fit.

The context does not depend on the drafter or the currently free memory, so a document's prompt is the same with and
without speculation, and from one day to the next.
"""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

PROCESSOR = Path("/proc/cpuinfo")
GPU_DEVICE = Path("/dev/nvidiactl")
CONTAINER_MEMORY = Path("/sys/fs/cgroup/memory.max")
MEMORY = Path("/proc/meminfo")
USUAL_CONTEXT = 2048  # tokens: minimum context if memory is short, up to the model's own limit
CONTEXT_UNIT = 512  # tokens: caches are allocated in multiples of this
MEMORY_SHARE = 16  # 1/16 of the machine's memory is for keys and values of concurrent requests
CACHE_SHARE = 4  # 1/4 of cache_mb is for concurrent requests; the rest is for idle documents


def machine_memory() -> int | None:
    """Return the bytes of memory of this machine or its container, or None if the system does not report it."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    try:
        return min(whole, int(CONTAINER_MEMORY.read_text(encoding="ascii")))
    except (OSError, ValueError):  # no container, or no limit
        return whole


def available_memory() -> int | None:
    """Return the bytes still available to a program, including swap, at most `machine_memory`.

    Falls back to `machine_memory` if the system does not report free memory.
    """
    whole = machine_memory()
    try:
        fields = dict(line.split(":", 1) for line in MEMORY.read_text(encoding="ascii").splitlines())
        free = sum(int(fields[name].removesuffix("kB")) << 10 for name in ("MemAvailable", "SwapFree"))
    except (OSError, ValueError, KeyError):  # not Linux
        return whole
    return min(whole, free) if whole and free else whole


def has_gpu() -> bool:
    """Return whether an NVIDIA GPU and its driver seem present, without loading any library."""
    return shutil.which("nvidia-smi") is not None or GPU_DEVICE.exists()


def computes_bfloat16() -> bool:
    """Return whether the processor has bfloat16 products; False if the system does not report it."""
    try:
        flags = PROCESSOR.read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def processor_key() -> str:
    """Return the processor's name and the number of logical cores this process may use, as a key for measurements."""
    fields: dict[str, str] = {}
    try:
        for line in PROCESSOR.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    except OSError:
        pass  # not Linux
    known = [fields[key] for key in ("model name", "cpu family", "model", "stepping", "CPU part") if key in fields]
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{' '.join(known) or platform.processor() or platform.machine()}, {usable} cores"


def choose_context(setting: int, longest: int, token_bytes: int, batch: int, room: int) -> int:
    """Return the context in tokens, prompt and completion together, for each of `batch` requests.

    A token takes `token_bytes`. The result is the setting, or (0) as many tokens as fit into `room` bytes but at least
    USUAL_CONTEXT; never more than the model's limit.
    """
    if setting:
        return min(longest, setting)
    fitting = room // (batch * max(1, token_bytes))
    return min(longest, max(USUAL_CONTEXT, fitting - fitting % CONTEXT_UNIT))


def context_room(cache_mb: int, memory: int | None) -> int:
    """Return the bytes for keys and values of concurrent requests: a share of cache_mb, else of the memory."""
    return cache_mb * 2**20 // CACHE_SHARE if cache_mb else (memory or 0) // MEMORY_SHARE
