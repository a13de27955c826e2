"""Determine this machine's memory, CPU and speed, and how many tokens of context fit in memory, without torch.

The context length does not depend on the drafter or the free memory, so a document's prompt is the same with and
without speculation, and after a restart. The speed is the time per token of a 4-bit 1.5B model, measured once.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from codespec.errors import ConfigError, install_fix
from codespec.files import Kept, digest, write
from codespec.store.disk import Say
from codespec.user_folders import cache_folder

CPUINFO = Path("/proc/cpuinfo")
# Instruction sets on which the kernel of a matrix product depends, widest first.
FEATURES = ("amx_bf16", "amx_tile", "avx512_fp16", "avx512_bf16", "avx512f", "avx_vnni", "avx2", "asimd")
# Environment variables that keep torch's libraries from using all instruction sets.
HIDING = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
GPU_DEVICE = Path("/dev/nvidiactl")
CONTAINER_MEMORY = Path("/sys/fs/cgroup/memory.max")
MEMORY = Path("/proc/meminfo")
USUAL_CONTEXT = 2048  # tokens; a shorter context is chosen only if the model has no more
CONTEXT_UNIT = 512  # tokens; a chosen context is a multiple
MEMORY_SHARE = 16  # 1/16 of the machine's memory is for keys and values of concurrent requests
CACHE_SHARE = 4  # 1/4 of cache_mb is for concurrent requests; the rest is for idle documents
# Without cache_mb: one slot for each concurrent request, or up to IDLE_FACTOR while all take at most IDLE_MB megabytes.
IDLE_FACTOR, IDLE_MB = 4, 256
MEASURE = (sys.executable, "-P", "-m", "codespec.startup.step_speed")
MEASURE_TIMEOUT_S = 120.0  # seconds; timeout of a speed measurement


@dataclass(frozen=True, slots=True)
class Processor:
    """The properties of a CPU that affect a model's results and speed."""

    name: str
    features: tuple[str, ...]  # its instruction sets that are in FEATURES
    hidden: tuple[str, ...]  # settings `NAME=value` of the variables in HIDING
    cores: int  # physical cores that this process may use

    @property
    def label(self) -> str:
        """A one-line description of the CPU for reports."""
        known = f"{self.name}, {' '.join(self.features) or platform.machine()}, {self.cores} core(s)"
        return f"{known}, {' '.join(self.hidden)}" if self.hidden else known


def processor() -> Processor:
    """Return the properties of this machine's CPU, and the current values of the environment variables in HIDING."""
    name, features, cores = _machine()
    hidden = tuple(f"{variable}={os.environ[variable]}" for variable in HIDING if os.environ.get(variable))
    return Processor(name, features, hidden, cores)


def usable_cores() -> int:
    """Return the number of logical cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _machine() -> tuple[str, tuple[str, ...], int]:
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return read_cpuinfo(text, usable_cores())


def read_cpuinfo(text: str, usable: int) -> tuple[str, tuple[str, ...], int]:
    """Parse the CPU's name, features and usable physical cores from /proc/cpuinfo, given the `usable` logical cores."""
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


def machine_memory() -> int | None:
    """Return the memory of this machine or its container in bytes, or None if the system does not report the size."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    try:
        return min(whole, int(CONTAINER_MEMORY.read_text(encoding="ascii")))
    except (OSError, ValueError):  # no container, or no limit
        return whole


def available_memory() -> int | None:
    """Return the bytes of free memory and swap, at most `machine_memory()`; if unknown, return `machine_memory()`."""
    whole = machine_memory()
    try:
        fields = dict(line.split(":", 1) for line in MEMORY.read_text(encoding="ascii").splitlines())
        free = sum(int(fields[name].removesuffix("kB")) << 10 for name in ("MemAvailable", "SwapFree"))
    except (OSError, ValueError, KeyError):  # not Linux
        return whole
    return min(whole, free) if whole and free else whole


def has_gpu() -> bool:
    """Return whether an NVIDIA GPU and its driver seem to be present, without loading a library."""
    return shutil.which("nvidia-smi") is not None or GPU_DEVICE.exists()


def has_native() -> bool:
    """Return whether the native kernels are installed and built, without loading them."""
    found = importlib.util.find_spec("codespec_native")
    origin = found.origin if found is not None else None
    return origin is not None and any((Path(origin).parent / "lib").glob("codespec.*"))


def require_kernels() -> None:
    """Raise ConfigError if the native kernels are not installed, or if their library is outdated or fails to load."""
    try:
        from codespec_native.library import NativeError, load_library
    except ModuleNotFoundError as error:
        if error.name != "codespec_native":
            raise
        raise ConfigError("The native kernels are not installed", install_fix(folder="./native")) from error
    try:
        load_library()
    except NativeError as error:
        raise ConfigError(str(error)) from error


def computes_bfloat16() -> bool:
    """Return whether the CPU has instructions for bfloat16 products; False if CPU features are not reported."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(processor().features)


def choose_context(setting: int, longest: int, token_bytes: int, batch: int, room: int) -> int:
    """Return each of `batch` requests' context in tokens: `setting`, or all that fit in `room`, at most `longest`."""
    if setting:
        return min(longest, setting)
    fitting = room // (batch * max(1, token_bytes))
    return min(longest, max(USUAL_CONTEXT, fitting - fitting % CONTEXT_UNIT))


def context_room(cache_mb: int, memory: int | None) -> int:
    """Return the bytes for caches of concurrent requests: a share of `cache_mb` or, if that is 0, of `memory`."""
    return cache_mb * 2**20 // CACHE_SHARE if cache_mb else (memory or 0) // MEMORY_SHARE


def read_step() -> float | None:
    """Return the recorded milliseconds per token: infinity without native kernels, or None if there is no record."""
    return _kept().load([])


def write_step(milliseconds: float) -> None:
    """Save the time per token for this CPU and this version of the native kernels. Raises OSError."""
    kept = _kept()
    write(kept.file, kept.spell(milliseconds))


def measure_step(say: Say) -> float | None:
    """Return the recorded or newly measured time per token; if measuring fails, report why and return None."""
    known = read_step()
    if known is not None or importlib.util.find_spec("numpy") is None or not has_native():
        return known
    say("measuring once how fast this machine computes a token (some seconds)")
    try:
        done = subprocess.run(
            MEASURE, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=MEASURE_TIMEOUT_S, check=True,
        )  # fmt: skip
        write_step(float(done.stdout.split()[-1]))
        return read_step()
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["no error output"])[-1]
    except (OSError, LookupError, ValueError, subprocess.SubprocessError) as error:
        reason = str(error)
    say(f"the speed of this machine could not be measured ({reason[:160]})")
    return None


def _kept() -> Kept[float]:
    try:
        kernels = version("codespec_native")
    except PackageNotFoundError:
        kernels = "none"
    known = processor()
    file = cache_folder() / "step_time" / f"{digest((known.name, known.cores, 'native', kernels))}.json"
    return Kept(
        file, "time of a token", lambda content: float(content["milliseconds"]), lambda ms: {"milliseconds": str(ms)}
    )  # a string, because JSON has no infinity
