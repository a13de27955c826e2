"""Python, packages, cores and memory. Knows this machine and what the settings ask of it; loads no model."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from codespec import __version__
from codespec.cli.checks.finding import Finding, failed, from_error, warning, well
from codespec.cli.options import require_torch
from codespec.config import EngineConfig
from codespec.errors import ConfigError, install_mend
from codespec.pair.context import USUAL_CONTEXT, choose_context, context_room, machine_memory
from codespec.pair.facts import ModelFacts
from codespec.pair.settings import computes_bfloat16
from codespec.pair.size import USUAL_BATCH, cache_size, slot_size, weight_size

ENGINE_PACKAGES = ("torch", "transformers", "safetensors", "numpy", "aiohttp")
MEMORY = Path("/proc/meminfo")
QUOTA = Path("/sys/fs/cgroup/cpu.max")
RUNTIME = 500e6  # bytes that Python, torch and a step's tensors take beside the models
NEARLY = 0.8  # of the free memory


def check_python() -> Finding:
    """Which Python and which codespec."""
    return well("python", f"{platform.python_version()} on {platform.machine()}, codespec {__version__}")


def check_packages(needed: bool) -> Iterator[Finding]:
    """Whether the engine's packages are there and load; an editor does without, where a daemon runs elsewhere."""
    missing = [name for name in ENGINE_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        said, mend = f"{', '.join(missing)} not installed", install_mend()
        yield failed("packages", said, mend) if needed else warning("packages", f"{said} (a daemon answers)", mend)
        return
    try:
        require_torch()
    except ConfigError as error:
        yield from_error("packages", error)
        return
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ENGINE_PACKAGES[1:]]
    yield well("packages", f"{_torch_build()}, {', '.join(versions)}")


def _torch_build() -> str:
    import torch

    return f"torch {torch.__version__} ({f'CUDA {torch.version.cuda}' if torch.version.cuda else 'CPU build'})"


def check_processor(config: EngineConfig) -> Iterator[Finding]:
    """Whether as many threads run as there are cores, and whether the number format is one that the processor has."""
    cores = usable_cores()
    if config.threads > cores:
        said = f"{config.threads} threads on {cores} usable core(s) wait for each other"
        yield warning("cores", said, f"set threads = {max(1, cores)} or less")
    else:
        yield well(
            "cores", f"{cores} usable, threads = {config.threads}{'' if config.threads else ' (measured at start)'}"
        )
    on_cpu = not config.device.startswith("cuda")
    if on_cpu and "bfloat16" in (config.dtype, config.drafter_dtype) and not computes_bfloat16():
        yield warning(
            "dtype", "this processor has no bfloat16 products, which makes them slow", 'set dtype = "float32"'
        )


def usable_cores() -> int:
    """Cores that this process may use: by its affinity and by its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = QUOTA.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def check_device(config: EngineConfig) -> Iterator[Finding]:
    """Whether the device is there; says nothing of a CPU. The packages must load."""
    if config.device == "cpu":
        return
    import torch

    if torch.cuda.is_available():
        free, whole = torch.cuda.mem_get_info()
        yield well("device", f"{torch.cuda.get_device_name()}, {_gb(free)} of {_gb(whole)} free")
    elif config.device == "auto":
        yield well("device", "no GPU that torch can use, so the CPU is used")
    else:
        why = "this torch is a CPU build" if torch.version.cuda is None else "torch finds no GPU"
        yield failed(
            "device", f"device = {config.device!r}, but {why}", 'set device = "cpu", or install a CUDA build of torch'
        )


def check_memory(config: EngineConfig, target: ModelFacts, drafter: ModelFacts | None) -> Finding:
    """Whether models and caches fit into what is free."""
    need = needed_bytes(config, target, drafter)
    free = free_bytes()
    if free is None:
        return well("memory", f"about {_gb(need)} needed; this system does not say how much is free")
    said = f"about {_gb(need)} needed for weights and caches, {_gb(free)} free"
    mend = "close other programs, choose smaller models, or lower max_batch, cache_mb or context"
    if need > free:
        return failed("memory", said, mend)
    return warning("memory", said, mend) if need > NEARLY * free else well("memory", said)


def needed_bytes(config: EngineConfig, target: ModelFacts, drafter: ModelFacts | None) -> float:
    """An estimate: weights in their number formats, caches, and what the program itself takes."""
    sides = [(target, config.dtype)] + ([(drafter, config.drafter_dtype)] if drafter else [])
    weights = sum(weight_size(side, dtype) for side, dtype in sides)
    return RUNTIME + weights + cache_size(replace(config, context=_context(config, target)), sides)


def _context(config: EngineConfig, target: ModelFacts) -> int:
    """The tokens that a target has here; the usual ones on a GPU, whose memory is not this machine's."""
    room = context_room(config.cache_mb, machine_memory()) if config.device == "cpu" else 0
    each, batch = slot_size(target, config.dtype, 1), config.max_batch or USUAL_BATCH
    return choose_context(config.context, target.context or USUAL_CONTEXT, each, batch, room)


def free_bytes() -> float | None:
    """Memory that can be had without swapping; None where the system does not tell."""
    try:
        lines = MEMORY.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
