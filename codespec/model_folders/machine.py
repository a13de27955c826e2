"""What this machine offers a model: its memory, its processor, whether that computes bfloat16, and how many tokens of
context fit.

The drafter and the memory that is free at the moment have no part in the context: a document's prompt is the same with
speculation and without, today and tomorrow.
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
USUAL_CONTEXT = 2048  # tokens: the least context where memory is short, if the model takes them
CONTEXT_UNIT = 512  # tokens: caches are allocated in multiples of it
MEMORY_SHARE = 16  # 1/16 of the machine's memory is for the keys and values of the requests that run at once
CACHE_SHARE = 4  # 1/4 of cache_mb is for them; the rest is for idle documents


def machine_memory() -> int | None:
    """Bytes of memory that this machine, or its container, has; None where the system does not tell."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    try:
        return min(whole, int(CONTAINER_MEMORY.read_text(encoding="ascii")))
    except (OSError, ValueError):  # no container, or one without a limit
        return whole


def available_memory() -> int | None:
    """Bytes that a program could still take, swap included, up to `machine_memory`; the latter where the system does
    not say what is free.
    """
    whole = machine_memory()
    try:
        fields = dict(line.split(":", 1) for line in MEMORY.read_text(encoding="ascii").splitlines())
        free = sum(int(fields[name].removesuffix("kB")) << 10 for name in ("MemAvailable", "SwapFree"))
    except (OSError, ValueError, KeyError):  # another system
        return whole
    return min(whole, free) if whole and free else whole


def has_gpu() -> bool:
    """Whether there is an NVIDIA GPU with its driver, as far as that is known without loading anything."""
    return shutil.which("nvidia-smi") is not None or GPU_DEVICE.exists()


def computes_bfloat16() -> bool:
    """Whether the processor has bfloat16 products; False where the system does not tell."""
    try:
        flags = PROCESSOR.read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def processor_key() -> str:
    """Names the processor and how many of its logical cores this process may use, for measurements that are kept."""
    fields: dict[str, str] = {}
    try:
        for line in PROCESSOR.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    except OSError:
        pass  # another system
    known = [fields[key] for key in ("model name", "cpu family", "model", "stepping", "CPU part") if key in fields]
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{' '.join(known) or platform.processor() or platform.machine()}, {usable} cores"


def choose_context(setting: int, longest: int, token_bytes: int, batch: int, room: int) -> int:
    """Tokens of each of `batch` requests, prompt and completion together; a token takes `token_bytes`.

    The setting, or (0) as many as fit into `room` bytes but at least USUAL_CONTEXT; never more than the model takes.
    """
    if setting:
        return min(longest, setting)
    fitting = room // (batch * max(1, token_bytes))
    return min(longest, max(USUAL_CONTEXT, fitting - fitting % CONTEXT_UNIT))


def context_room(cache_mb: int, memory: int | None) -> int:
    """Bytes for the keys and values of the requests that run at once: a share of cache_mb, else of the memory."""
    return cache_mb * 2**20 // CACHE_SHARE if cache_mb else (memory or 0) // MEMORY_SHARE
