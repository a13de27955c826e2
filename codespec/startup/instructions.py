"""Find a lower CPU instruction set for a model that varies in every call shape.

Each candidate is tested in a separate process. The result is cached and applied at the next start, because oneDNN reads
its environment variable only once, before first use. The current process continues in fast mode.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, MutableSequence

from codespec.contract.engine_config import EngineConfig
from codespec.json_store import Kept
from codespec.startup.fingerprint import kept_file
from codespec.store.processor import processor

VERSION = 1  # of the trial; the results of others are not loaded
VARIABLE = "ONEDNN_MAX_CPU_ISA"
LOWER = ("AVX512_CORE_BF16", "AVX512_CORE", "AVX2")  # widest first
NONE = "none"
SECONDS = 120  # timeout for one test, which has to load the model
_LOADED: list[str] = []  # targets this process has loaded; oneDNN is in use if not empty


def take_kept(config: EngineConfig) -> None:
    """Apply the cached instruction set of this model, before the process loads its first model.

    Does nothing if the user has set the variable.
    """
    late = bool(_LOADED)
    _LOADED.append(config.target)
    if late or config.mode != "exact" or os.environ.get(VARIABLE):
        return
    instructions = _kept(config).load([])
    if instructions in LOWER:
        os.environ[VARIABLE] = instructions


def look_lower(config: EngineConfig, notes: MutableSequence[str]) -> None:
    """Try lower instruction sets for a target that is not exact here. Caches the result for the next start."""
    kept = _kept(config)
    if os.environ.get(VARIABLE) or kept.load([]) is not None:
        return
    chosen = next((instructions for instructions in _lower() if holds(config, instructions)), NONE)
    kept.save(chosen, notes)
    if chosen != NONE:
        notes.append(f"the next start takes {VARIABLE}={chosen}, where exact mode holds")


def holds(config: EngineConfig, instructions: str) -> bool:
    """Return whether the target is exact with these instructions, tested in a separate process."""
    module = ("-P", "-m", "codespec.startup.instructions")  # -P: do not import from the working directory
    command = [sys.executable, *module, config.target, config.dtype, config.target_shape]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, VARIABLE: instructions},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _kept(config: EngineConfig) -> Kept[str]:
    """Return the file for a target's result: one of LOWER, or NONE."""
    file = kept_file("instructions", VERSION, config.target, config.dtype, config.target_shape)
    return Kept(file, "instruction set", lambda content: str(content["name"]), lambda name: {"name": name})


def _lower() -> Iterator[str]:
    """Yield the entries of LOWER below this processor's instruction set."""
    features = processor().features
    has = {"AVX512_CORE_BF16": "avx512_bf16", "AVX512_CORE": "avx512f", "AVX2": "avx2"}
    known = [instructions for instructions in LOWER if has[instructions] in features]
    yield from known if "amx_bf16" in features or "avx512_fp16" in features else known[1:]


def main(arguments: list[str]) -> int:
    """Return 0 if the target is exact in this process, else 1. Arguments: target, dtype and shape."""
    from codespec.models.loader import load_model
    from codespec.models.shapes import SHAPES
    from codespec.startup.batch_invariance import LENGTH
    from codespec.startup.call_search import settle

    target, dtype, shape = arguments
    model = load_model(target, dtype=dtype, shape=SHAPES.get(shape))
    model.allocate(3, LENGTH)
    return 1 if settle(model).variance else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
