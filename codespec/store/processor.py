"""The CPU that this process runs on: its name, instruction sets and cores. Does not import torch.

Measurements record the CPU because results on one may not hold on another.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
# Widest first: they determine which kernels a matrix product uses.
FEATURES = ("amx_bf16", "amx_tile", "avx512_fp16", "avx512_bf16", "avx512f", "avx_vnni", "avx2", "asimd")
# Environment variables that torch's libraries read on first use.
HIDING = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")


@dataclass(frozen=True, slots=True)
class Processor:
    """A CPU.

    `features` are its instruction sets among FEATURES, `hidden` the variables that keep torch from using all of them,
    `cores` the physical cores available to this process.
    """

    name: str
    features: tuple[str, ...]
    hidden: tuple[str, ...]
    cores: int

    @property
    def label(self) -> str:
        """A one-line description for a report."""
        known = f"{self.name}, {' '.join(self.features) or platform.machine()}, {self.cores} core(s)"
        return f"{known}, {' '.join(self.hidden)}" if self.hidden else known


def processor() -> Processor:
    """Return this machine's CPU. The environment variables are read at each call."""
    name, features, cores = _machine()
    hidden = tuple(f"{variable}={os.environ[variable]}" for variable in HIDING if os.environ.get(variable))
    return Processor(name, features, hidden, cores)


@cache
def _machine() -> tuple[str, tuple[str, ...], int]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _name_elsewhere(), (), usable
    return read_cpuinfo(text, usable)


def read_cpuinfo(text: str, usable: int) -> tuple[str, tuple[str, ...], int]:
    """Parse /proc/cpuinfo into name, features and physical cores, of which `usable` logical ones are available."""
    blocks = [_fields(block) for block in text.split("\n\n") if block.strip()]
    if not blocks:
        return _name_elsewhere(), (), usable
    first = blocks[0]
    flags = set((first.get("flags") or first.get("Features") or "").split())
    cores = [(block["physical id"], block["core id"]) for block in blocks if "core id" in block]
    siblings = max(1, round(len(cores) / len(set(cores)))) if cores else 1
    numbers = [first[key] for key in ("cpu family", "model", "stepping", "CPU part") if key in first]
    name = first.get("model name") or _name_elsewhere()
    full = f"{name} ({'/'.join(numbers)})" if numbers else name
    return full, tuple(feature for feature in FEATURES if feature in flags), max(1, usable // siblings)


def _fields(block: str) -> Mapping[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _name_elsewhere() -> str:
    if sys.platform == "darwin":
        try:
            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return platform.machine()
    return platform.processor() or platform.machine()
