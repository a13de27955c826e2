"""Check this machine: Python, packages, processor, device and writable folders. Loads no model."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path

from codespec import __version__
from codespec.cli.options import require_kernels_or_torch, require_torch
from codespec.contract.engine_config import EngineConfig
from codespec.errors import ConfigError, Finding, failed, from_fault, install_mend, warning, well
from codespec.store.machine import computes_bfloat16, has_native, require_kernels
from codespec.user_folders import cache_folder, check_folder, read_secret, state_folder

ENGINE_PACKAGES = ("numpy", "aiohttp", "gguf")
TORCH_PACKAGES = ("torch", "transformers", "safetensors")  # for models that the native kernels do not compute
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def check_python() -> Finding:
    """Report the versions of Python and codespec."""
    return well("python", f"{platform.python_version()} on {platform.machine()}, codespec {__version__}")


def check_packages(config: EngineConfig | None, needed: bool) -> Iterator[Finding]:
    """Check that the packages for the configured models load (None: all).

    An editor works without them if a daemon runs elsewhere.
    """
    torch = config is None or config.needs_torch
    packages = (*ENGINE_PACKAGES, *(TORCH_PACKAGES if torch else ("codespec_native",)))
    try:
        require_kernels_or_torch()
        for extra, names in (("", ENGINE_PACKAGES), ("torch", TORCH_PACKAGES if torch else ())):
            if missing := [name for name in names if importlib.util.find_spec(name) is None]:
                raise ConfigError(f"{', '.join(missing)} not installed", install_mend(extra))
        if torch:
            require_torch()
        else:
            require_kernels()
    except ConfigError as error:
        found = from_fault("packages", error.fault)
        yield from [found] if needed else [warning("packages", f"{found.message} (a daemon answers)", found.fix)]
        return
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages if name != "torch"]
    if torch:
        versions.insert(0, _torch_build())
    yield well("packages", ", ".join(versions))


def _torch_build() -> str:
    import torch

    return f"torch {torch.__version__} ({f'CUDA {torch.version.cuda}' if torch.version.cuda else 'CPU build'})"


def check_processor(config: EngineConfig) -> Iterator[Finding]:
    """Check that there are no more threads than cores, and that the processor supports the number format."""
    cores = usable_cores()
    if config.threads > cores:
        message = f"{config.threads} threads on {cores} usable core(s) wait for each other"
        yield warning("cores", message, f"set threads = {max(1, cores)} or less")
    else:
        yield well(
            "cores", f"{cores} usable, threads = {config.threads}{'' if config.threads else ' (measured at start)'}"
        )
    on_cpu = not config.device.startswith("cuda")
    if on_cpu and "bfloat16" in (config.dtype, config.drafter_dtype) and not computes_bfloat16():
        name = "dtype" if config.dtype == "bfloat16" else "drafter_dtype"
        better = "native" if has_native() else "float32"
        message = "this processor has no bfloat16 products, which makes them slow"
        yield warning("dtype", message, f'set {name} = "{better}"')


def usable_cores() -> int:
    """Return the number of cores that this process may use, given its affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = QUOTA.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def check_device(config: EngineConfig) -> Iterator[Finding]:
    """Check that the device exists. Yield nothing for a CPU. The packages must be importable."""
    if config.device == "cpu":
        return
    import torch

    if torch.cuda.is_available():
        free, whole = torch.cuda.mem_get_info()
        yield well("device", f"{torch.cuda.get_device_name()}, {gigabytes(free)} of {gigabytes(whole)} free")
    elif config.device == "auto":
        yield well("device", "no GPU that torch can use, so the CPU is used")
    else:
        why = "this torch is a CPU build" if torch.version.cuda is None else "torch finds no GPU"
        yield failed(
            "device", f"device = {config.device!r}, but {why}", 'set device = "cpu", or install a CUDA build of torch'
        )


def check_folders() -> Iterator[Finding]:
    """Check that measurements and learned state can be saved."""
    for name, folder, variable in (
        ("cache", cache_folder(), "XDG_CACHE_HOME"),
        ("state", state_folder(), "XDG_STATE_HOME"),
    ):
        why = why_not_writable(folder)
        if why:
            yield warning(name, f"nothing can be saved in {folder} ({why})", f"make it writable, or set {variable}")
        else:
            yield well(name, f"{folder} is writable")
    try:
        if (state_folder() / "secret").exists():
            check_folder()
            read_secret()
    except ConfigError as error:
        yield from_fault("secret", error.fault)


def why_not_writable(folder: Path) -> str:
    """Return why no file can be created in a folder or its nearest existing parent, or "" if one can."""
    try:
        nearest = next(place for place in (folder, *folder.parents) if place.exists())
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(bytes(4096))
    except OSError as error:
        return error.strerror or type(error).__name__
    return ""


def gigabytes(size: float) -> str:
    """Return a size in bytes as text."""
    return f"{size / 1e9:.1f} GB"
