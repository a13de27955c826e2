"""Checks of `codespec doctor` for this machine. The checks do not load weights or download anything."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codespec import __version__
from codespec.api.config import EngineConfig, ServeConfig
from codespec.cli.options import Address, choose_config, is_installed, require_engine
from codespec.client.daemon_client import Found
from codespec.errors import ConfigError, Finding, failed, from_fault, install_fix, warning, well
from codespec.pair import ModelFacts, check_fill_in, describe, read_facts
from codespec.store.catalogue import BYTES, room
from codespec.store.choice import offer_note
from codespec.store.machine import (
    IDLE_FACTOR,
    IDLE_MB,
    USUAL_CONTEXT,
    available_memory,
    choose_context,
    computes_bfloat16,
    context_room,
    has_native,
    machine_memory,
    usable_cores,
)
from codespec.store.model_folder import NATIVE_TYPES, first_number, text_config
from codespec.store.resolve import resolve
from codespec.user_folders import cache_folder, state_folder

ENGINE_PACKAGES = ("numpy", "aiohttp", "gguf")
TORCH_PACKAGES = ("torch", "transformers", "safetensors")  # for models that the native kernels do not compute
QUOTA = Path("/sys/fs/cgroup/cpu.max")
USUAL_BATCH = 8  # assumed max_batch if the setting is 0, which means that each start measures it
NEARLY = 0.8  # share of the free memory above which the need for memory is a warning


@dataclass(slots=True)
class Seen:
    """Results of earlier checks that later checks use; None for unknown results."""

    options: argparse.Namespace
    config: EngineConfig | None = None  # None also if an upstream server generates the completions
    serve: ServeConfig | None = None
    address: Address | None = None  # of the daemon
    found: Found | None = None  # the program that listens at the address
    target: ModelFacts | None = None
    drafter: ModelFacts | None = None
    packages: bool = False  # whether the packages that the configured models need can be imported
    fits: bool = False  # whether the models are complete and fit into memory

    @property
    def daemon(self) -> Mapping[str, Any]:
        """The status report of the user's own daemon; {} if no daemon answers."""
        return self.found.daemon if self.found is not None else {}

    @property
    def upstream(self) -> bool:
        """Whether an upstream server generates the completions."""
        return self.serve is not None and bool(self.serve.upstream)


def check_settings(seen: Seen) -> Iterator[Finding]:
    """Check the engine's settings, and report the selected model and the reason for the selection."""
    yield well("python", f"{platform.python_version()} on {platform.machine()}, codespec {__version__}")
    settings, choice = seen.options.config, choose_config(seen.options)
    seen.config = choice.config
    own = " (your own)" if settings.is_own else ""
    yield well("settings", f"read from {settings.file}{own}" if settings.file else "defaults, variables and flags")
    note, model = offer_note(choice.config), choice.config.model
    starter = f"starter, since {choice.why}; {note}" if note else ""
    yield well("model", starter or (f"{model}, {choice.why}" if model else choice.why))


def check_packages(seen: Seen) -> Iterator[Finding]:
    """Check that the required packages load. With invalid settings, the packages for the default models are checked.

    A missing package is only a warning if a daemon answers, because an editor then works without the package.
    """
    if seen.upstream:
        return
    config = seen.config or EngineConfig()
    packages = (*ENGINE_PACKAGES, *(TORCH_PACKAGES if config.needs_torch else ("codespec_native",)))
    try:
        require_engine(config)
        if missing := [name for name in packages if not is_installed(name)]:
            extra = "torch" if set(missing) & set(TORCH_PACKAGES) else ""
            verb = "is" if len(missing) == 1 else "are"
            raise ConfigError(f"{' and '.join(missing)} {verb} not installed", install_fix(extra))
    except ConfigError as error:
        found = from_fault("packages", error.fault)
        yield warning("packages", f"{found.message} (a daemon answers)", found.fix) if seen.daemon else found
        return
    seen.packages = True
    yield well("packages", ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages))


def check_target(seen: Seen) -> Iterator[Finding]:
    """Check the target's files, and whether the target can use the text after the cursor."""
    if seen.config is not None:
        found, seen.target = _check_model("target", seen.config.target)
        yield found
    if seen.target is not None:
        yield check_fill_in(seen.target)


def check_drafter(seen: Seen) -> Iterator[Finding]:
    """Check the drafter's files, if a drafter is configured."""
    if seen.config is not None and seen.config.drafter == "none":
        yield well("drafter", "none: drafts only copy from the text")
    elif seen.config is not None:
        found, seen.drafter = _check_model("drafter", seen.config.drafter)
        yield found


def _check_model(role: str, name: str) -> tuple[Finding, ModelFacts | None]:
    model = resolve(name)
    if model.fetched() is None:
        fix = f"let the first start fetch it, or run `codespec models pull {name}`"
        return warning(role, f"{name} is a hub id and not on this machine yet", fix), None
    facts = read_facts(model)
    return describe(role, facts), None if facts.reasons else facts


def check_cores(seen: Seen) -> Iterator[Finding]:
    """Check that the setting `threads` is not above the number of usable cores."""
    if seen.config is None:
        return
    cores, threads = usable_cores(), seen.config.threads
    with suppress(OSError, ValueError):  # no container, or no quota ("max")
        quota, period = map(int, QUOTA.read_text(encoding="ascii").split())
        cores = max(1, min(cores, quota // period))
    if threads > cores:
        message = f"{threads} threads on {cores} usable core(s) wait for each other"
        yield warning("cores", message, f"set threads = {cores} or less")
    else:
        yield well("cores", f"{cores} usable, threads = {threads}{'' if threads else ' (measured at start)'}")


def check_device(seen: Seen) -> Iterator[Finding]:
    """Check that the device exists and is fast with the configured dtype, and report the native kernels in use."""
    config = seen.config
    if config is None:
        return
    formats = {"dtype": config.dtype, "drafter_dtype": config.drafter_dtype}
    slow = [name for name, value in formats.items() if value == "bfloat16"]
    if slow and not config.device.startswith("cuda") and not computes_bfloat16():
        message = "this processor has no bfloat16 products, so bfloat16 is slow"
        yield warning("dtype", message, f'set {slow[0]} = "{"native" if has_native() else "float32"}"')
    if config.device != "cpu" and seen.packages:
        yield _gpu(config.device)
    if "native" in formats.values() and seen.packages:
        from codespec_native.library import find_path, path_name

        name = path_name(find_path())
        message = "native kernels without vector instructions, which are many times slower"
        fix = "use a smaller model, or a daemon on another machine (--url)"
        yield warning("kernel", message, fix) if name == "scalar" else well("kernel", f"native kernels, {name}")


def _gpu(device: str) -> Finding:
    why = "torch is not installed"
    if is_installed("torch"):
        import torch

        if torch.cuda.is_available():
            free, whole = map(gigabytes, torch.cuda.mem_get_info())
            return well("device", f"{torch.cuda.get_device_name()}, {free} of {whole} free")
        why = "this torch is a CPU build" if torch.version.cuda is None else "torch finds no GPU"
    if device == "auto":
        return well("device", f"the CPU is used, because {why}")
    fix = 'set device = "cpu", or install a CUDA build of torch'
    return failed("device", f"device = {device!r}, but {why}", fix)


def check_memory(seen: Seen) -> Iterator[Finding]:
    """Check whether the models and caches fit into free memory, unless a daemon has already loaded the models."""
    config, target = seen.config, seen.target
    if config is None or target is None or (seen.drafter is None and config.drafter != "none"):
        return
    if seen.daemon.get("state") == "ready":
        return
    (start, need), free = needed_bytes(config, target, seen.drafter), available_memory()
    seen.fits = free is None or need <= free
    left = "this system does not report free memory" if free is None else f"{gigabytes(free)} free"
    message = f"about {gigabytes(start)} needed, up to {gigabytes(need)} as the caches fill, {left}"
    fix = "close other programs, choose smaller models, or lower max_batch, cache_mb or context"
    if free is None or need <= NEARLY * free:
        yield well("memory", message)
    else:
        yield warning("memory", message, fix) if seen.fits else failed("memory", message, fix)


def needed_bytes(config: EngineConfig, target: ModelFacts, drafter: ModelFacts | None) -> tuple[float, float]:
    """Estimate an engine's memory in bytes, with empty and with full caches, without temporary tensors."""
    sides = [(target, config.dtype)]
    if drafter is not None and config.asks_drafter:
        sides.append((drafter, config.drafter_dtype))
    start = room(dtype for _, dtype in sides) + sum(weight_size(model, dtype) for model, dtype in sides)
    if config.cache_mb:
        return start, start + config.cache_mb * 2**20
    space = context_room(0, machine_memory()) if config.device == "cpu" else 0  # a GPU has its own
    each, batch = slot_size(target, config.dtype, 1), config.max_batch or USUAL_BATCH
    context = choose_context(config.context, target.context or USUAL_CONTEXT, each, batch, space)
    running = batch * sum(slot_size(model, dtype, context) for model, dtype in sides)
    return start, start + max(running, min(IDLE_FACTOR * running, IDLE_MB * 2**20))


def weight_size(model: ModelFacts, dtype: str) -> int:
    """Return the size of the weights in bytes; for the dtype "native", the size of the GGUF file if there is one."""
    return model.file_bytes if dtype == "native" and model.file_bytes else model.weights.parameters * BYTES[dtype]


def slot_size(model: ModelFacts, dtype: str, context: int) -> int:
    """Return the size in bytes of the keys and values of `context` tokens; 0 if config.json lacks the dimensions."""
    values = text_config(model.config)
    layers = first_number(values, "num_hidden_layers", "n_layer")
    heads = first_number(values, "num_attention_heads", "n_head")
    size = first_number(values, "head_dim") or first_number(values, "hidden_size", "n_embd") // max(1, heads)
    kv_heads = first_number(values, "num_key_value_heads") or heads
    numbers = 2 * layers * kv_heads * size * min(context, model.context or context)
    if dtype == "native":  # only weights are stored in this format
        dtype = "float16" if values.get("model_type") in NATIVE_TYPES else "float32"
    return numbers * BYTES[dtype]


def check_folders(seen: Seen) -> Iterator[Finding]:
    """Check that the cache and state folders are writable."""
    folders = {"cache": (cache_folder(), "XDG_CACHE_HOME"), "state": (state_folder(), "XDG_STATE_HOME")}
    for name, (folder, variable) in folders.items():
        try:
            nearest = next(place for place in (folder, *folder.parents) if place.exists())
            with tempfile.TemporaryFile(dir=nearest) as file:
                file.write(bytes(4096))
            yield well(name, f"{folder} is writable")
        except OSError as error:
            why = error.strerror or type(error).__name__
            yield warning(name, f"nothing can be saved in {folder} ({why})", f"make it writable, or set {variable}")


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
