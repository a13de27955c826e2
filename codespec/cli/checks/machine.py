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
from codespec.cli.checks.seen import Seen
from codespec.cli.options import require_kernels_or_torch, require_torch
from codespec.errors import ConfigError, Finding, failed, from_fault, install_fix, warning, well
from codespec.store.machine import computes_bfloat16, has_native, require_kernels
from codespec.user_folders import cache_folder, check_folder, read_secret, state_folder

ENGINE_PACKAGES = ("numpy", "aiohttp", "gguf")
TORCH_PACKAGES = ("torch", "transformers", "safetensors")  # for models that the native kernels do not compute
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def check_python(seen: Seen) -> Iterator[Finding]:
    """Report the versions of Python and codespec."""
    yield well("python", f"{platform.python_version()} on {platform.machine()}, codespec {__version__}")


def check_packages(seen: Seen) -> Iterator[Finding]:
    """Check that the packages for the configured models load; all of them if the settings are invalid.

    An editor works without them if a daemon runs elsewhere.
    """
    torch = seen.config is None or seen.config.needs_torch
    try:
        require_kernels_or_torch()
        for extra, names in (("", ENGINE_PACKAGES), ("torch", TORCH_PACKAGES if torch else ())):
            if missing := [name for name in names if importlib.util.find_spec(name) is None]:
                raise ConfigError(f"{', '.join(missing)} not installed", install_fix(extra))
        require_torch() if torch else require_kernels()
    except ConfigError as error:
        if seen.daemon is None:
            raise
        found = from_fault("packages", error.fault)
        yield warning("packages", f"{found.message} (a daemon answers)", found.fix)
        return
    seen.packages = True
    packages = (*ENGINE_PACKAGES, *(TORCH_PACKAGES if torch else ("codespec_native",)))
    yield well("packages", ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages))


def check_cores(seen: Seen) -> Iterator[Finding]:
    """Check that there are no more threads than cores."""
    assert seen.config is not None
    cores, threads = usable_cores(), seen.config.threads
    if threads > cores:
        message = f"{threads} threads on {cores} usable core(s) wait for each other"
        yield warning("cores", message, f"set threads = {cores} or less")
    else:
        yield well("cores", f"{cores} usable, threads = {threads}{'' if threads else ' (measured at start)'}")


def usable_cores() -> int:
    """Return the number of cores that this process may use, given its affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = QUOTA.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def check_format(seen: Seen) -> Iterator[Finding]:
    """Check that the processor supports the number format."""
    config = seen.config
    assert config is not None
    formats = {"dtype": config.dtype, "drafter_dtype": config.drafter_dtype}
    slow = [name for name, value in formats.items() if value == "bfloat16"]
    if slow and not config.device.startswith("cuda") and not computes_bfloat16():
        message = "this processor has no bfloat16 products, which makes them slow"
        yield warning("dtype", message, f'set {slow[0]} = "{"native" if has_native() else "float32"}"')


def check_device(seen: Seen) -> Iterator[Finding]:
    """Check that the device exists. Yield nothing for a CPU."""
    assert seen.config is not None
    device = seen.config.device
    if device == "cpu":
        return
    import torch

    if torch.cuda.is_available():
        free, whole = torch.cuda.mem_get_info()
        yield well("device", f"{torch.cuda.get_device_name()}, {gigabytes(free)} of {gigabytes(whole)} free")
    elif device == "auto":
        yield well("device", "no GPU that torch can use, so the CPU is used")
    else:
        why = "this torch is a CPU build" if torch.version.cuda is None else "torch finds no GPU"
        yield failed(
            "device", f"device = {device!r}, but {why}", 'set device = "cpu", or install a CUDA build of torch'
        )


def check_kernels(seen: Seen) -> Iterator[Finding]:
    """Check the native kernels' instruction set if they compute a model. Raises ConfigError for a stale library."""
    config = seen.config
    assert config is not None
    if not has_native() or "native" not in (config.dtype, config.drafter_dtype):
        return
    require_kernels()
    from codespec_native.library import find_path, path_name

    name = path_name(find_path())
    if name == "scalar":
        message = "native kernels without vector instructions, which are many times slower"
        yield warning("kernel", message, "use a smaller model, or a daemon on another machine (--url)")
    else:
        yield well("kernel", f"native kernels, {name}")


def check_folders(seen: Seen) -> Iterator[Finding]:
    """Check that measurements and learned state can be saved."""
    folders = {"cache": (cache_folder(), "XDG_CACHE_HOME"), "state": (state_folder(), "XDG_STATE_HOME")}
    for name, (folder, variable) in folders.items():
        if why := why_not_writable(folder):
            yield warning(name, f"nothing can be saved in {folder} ({why})", f"make it writable, or set {variable}")
        else:
            yield well(name, f"{folder} is writable")


def why_not_writable(folder: Path) -> str:
    """Return why no file can be created in a folder or its nearest existing parent, or "" if one can."""
    try:
        nearest = next(place for place in (folder, *folder.parents) if place.exists())
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(bytes(4096))
    except OSError as error:
        return error.strerror or type(error).__name__
    return ""


def check_secret(seen: Seen) -> Iterator[Finding]:
    """Check the secret by which a daemon proves itself. Raises ConfigError for one that others can read."""
    if (state_folder() / "secret").exists():
        check_folder()
        read_secret()
    yield from ()


def gigabytes(size: float) -> str:
    """Return a size in bytes as text."""
    return f"{size / 1e9:.1f} GB"
