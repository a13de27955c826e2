"""Choose how a model calls this processor's kernels, so that exact mode holds: search once, and keep the result.

The shape of a call comes from `codespec.startup.call_search`. If a model varies in every shape, lower instruction sets
are tried, each in a separate process. The next start applies the one that was kept, because oneDNN reads its
environment variable only once, before first use; the current process continues in fast mode.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, MutableSequence
from dataclasses import replace
from typing import Any

import torch

from codespec.bounded_json import parse_json
from codespec.contract.engine_config import EngineConfig
from codespec.errors import ConfigError
from codespec.json_store import Kept
from codespec.models.call_shape import FAST, CallShape
from codespec.models.language_model import LanguageModel
from codespec.models.linear import large_kinds, measure_least_rows, tiled_linears
from codespec.startup.batch_invariance import CHUNK, LENGTH, SAMPLED, find_variance
from codespec.startup.call_search import SearchResult, settle
from codespec.startup.timing import kept_file, model_facts
from codespec.store.processor import processor

VERSION, TRIAL_VERSION = 3, 1  # of the search and of the trial of instructions; the results of others are not loaded
FORCED = "CODESPEC_TEST_CALLS"  # for tests: a shape as JSON that exact models use instead of the search result
VARIABLE = "ONEDNN_MAX_CPU_ISA"
LOWER = ("AVX512_CORE_BF16", "AVX512_CORE", "AVX2")  # widest first
NONE = "none"
TRIAL_SECONDS = 120  # timeout for one trial, which has to load the model
_LOADED: list[str] = []  # targets this process has loaded; oneDNN is in use if not empty


def choose_calls(model: LanguageModel, notes: MutableSequence[str], chunk: int = CHUNK) -> SearchResult:
    """Apply the cached call shape to a model, or search for one and cache it.

    If an exact model varies in every shape, it becomes inexact and `notes` says so. Slots 0 to 2 must be free.
    """
    model.threads = None
    forced = os.environ.get(FORCED, "")
    if forced and model.exact:
        found = _tried(model, _read_forced(forced), chunk)
    else:
        file = Kept(kept_file("calls", VERSION, model_facts(model)), "shape of calls", _parse, _spell)
        found = _kept(model, file, chunk, notes) or _find(model, file, chunk, notes)
    if found.variance:
        model.exact, model.variance = False, found.variance
        model.use(FAST)
        notes.append(f"exact mode does not hold here ({found.variance}): fast mode is used, near-ties may differ")
    if model.device.type == "cpu":
        model.threads = torch.get_num_threads()
    return found


def fast_calls(model: LanguageModel) -> CallShape:
    """Return FAST with the minimum row count that is fastest here, or FAST itself for a small model."""
    large = large_kinds(tiled_linears(model.network))
    return replace(FAST, least=measure_least_rows(large, 1)) if large else FAST


def _kept(
    model: LanguageModel, file: Kept[SearchResult], chunk: int, notes: MutableSequence[str]
) -> SearchResult | None:
    """Load the kept result and return it if it still holds on a short text."""
    found = file.load(notes)
    if found is None:
        return None
    if not model.exact:
        model.use(found.calls)
        return found
    again = _tried(model, found.calls, chunk, SAMPLED)
    if again.variance:
        notes.append(f"the kept shape of calls no longer holds ({again.variance}): another one is looked for")
        return None
    return replace(found, tried=f"{found.tried}; on an earlier start")


def _find(model: LanguageModel, file: Kept[SearchResult], chunk: int, notes: MutableSequence[str]) -> SearchResult:
    """Search for a shape and keep it. A device's kernels, and a small model in fast mode, have only one."""
    if model.exact and model.device.type != "cpu":
        return SearchResult(model.calls, find_variance(model, chunk))
    if model.exact:
        found = settle(model, chunk)
    else:
        found = SearchResult(fast_calls(model))
        model.use(found.calls)
    if not found.variance and found.calls is not FAST:
        file.save(found, notes)
    return found


def _parse(content: Mapping[str, Any]) -> SearchResult:
    return SearchResult(CallShape.from_dict(content["calls"]), tried=str(content["tried"]))


def _spell(found: SearchResult) -> Mapping[str, Any]:
    return {"calls": found.calls.as_dict(), "tried": found.tried}


def _tried(model: LanguageModel, calls: CallShape, chunk: int, length: int | None = None) -> SearchResult:
    model.use(calls)
    variance = find_variance(model, chunk) if length is None else find_variance(model, chunk, length)
    return SearchResult(calls, variance, "forced")


def _read_forced(text: str) -> CallShape:
    try:
        return CallShape.from_dict(parse_json(text.encode()))
    except (ValueError, TypeError) as error:  # JSON errors are ValueErrors
        raise ConfigError(f"{FORCED} = {text!r} is no shape of calls ({error})", "unset it") from error


def take_kept(config: EngineConfig) -> None:
    """Apply the cached instruction set of this model, before the process loads its first model.

    Does nothing if the user has set the variable.
    """
    late = bool(_LOADED)
    _LOADED.append(config.target)
    if late or config.mode != "exact" or os.environ.get(VARIABLE):
        return
    instructions = _kept_instructions(config).load([])
    if instructions in LOWER:
        os.environ[VARIABLE] = instructions


def look_lower(config: EngineConfig, notes: MutableSequence[str]) -> None:
    """Try lower instruction sets for a target that is not exact here. Caches the result for the next start."""
    kept = _kept_instructions(config)
    if os.environ.get(VARIABLE) or kept.load([]) is not None:
        return
    chosen = next((instructions for instructions in _lower() if holds(config, instructions)), NONE)
    kept.save(chosen, notes)
    if chosen != NONE:
        notes.append(f"the next start takes {VARIABLE}={chosen}, where exact mode holds")


def holds(config: EngineConfig, instructions: str) -> bool:
    """Return whether the target is exact with these instructions, tested in a separate process."""
    module = ("-P", "-m", "codespec.startup.calls")  # -P: do not import from the working directory
    command = [sys.executable, *module, config.target, config.dtype, config.target_shape]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, VARIABLE: instructions},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TRIAL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _kept_instructions(config: EngineConfig) -> Kept[str]:
    """Return the file for a target's result: one of LOWER, or NONE."""
    file = kept_file("instructions", TRIAL_VERSION, config.target, config.dtype, config.target_shape)
    return Kept(file, "instruction set", lambda content: str(content["name"]), lambda name: {"name": name})


def _lower() -> Iterator[str]:
    """Yield the entries of LOWER below this processor's instruction set."""
    features = processor().features
    has = {"AVX512_CORE_BF16": "avx512_bf16", "AVX512_CORE": "avx512f", "AVX2": "avx2"}
    known = [instructions for instructions in LOWER if has[instructions] in features]
    yield from known if "amx_bf16" in features or "avx512_fp16" in features else known[1:]


def main(arguments: list[str]) -> int:
    """Return 0 if the target is exact in this process, else 1. Arguments: target, dtype and shape."""
    from codespec.models.enlarge import SHAPES
    from codespec.models.loader import load_model

    target, dtype, shape = arguments
    model = load_model(target, dtype=dtype, shape=SHAPES.get(shape))
    model.allocate(3, LENGTH)
    return 1 if settle(model).variance else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
