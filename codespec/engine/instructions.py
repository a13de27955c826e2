"""A lower instruction set for a model that varies in every shape of call: tried in a process of its own, kept, and
taken by the next start. Knows oneDNN's variable; knows no kernel.

oneDNN reads the variable once, before its first use, so a process that has found out can't change its mind: it goes on
in fast mode.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, MutableSequence
from pathlib import Path

from codespec import __version__, json_store
from codespec.config import EngineConfig
from codespec.models.processor import processor
from codespec.user_folders import cache_folder

VARIABLE = "ONEDNN_MAX_CPU_ISA"
LOWER = ("AVX512_CORE_BF16", "AVX512_CORE", "AVX2")  # from the widest down
NONE = "none"
SECONDS = 120  # for one of them: a model must be loaded
_LOADED: list[str] = []  # by this process, which has used oneDNN since


def take_kept(config: EngineConfig) -> None:
    """Hides what an earlier start of this model found not to be exact, before the first model of the process loads;
    who set the variable has decided.
    """
    late = bool(_LOADED)
    _LOADED.append(config.target)
    if late or config.mode != "exact" or os.environ.get(VARIABLE):
        return
    found = _read(config)
    if found in LOWER:
        os.environ[VARIABLE] = found


def look_lower(config: EngineConfig, notes: MutableSequence[str]) -> None:
    """Tries lower instruction sets for a target that is not exact here; what holds is kept for the next start."""
    if os.environ.get(VARIABLE) or _read(config) is not None:
        return
    found = next((instructions for instructions in _lower() if holds(config, instructions)), NONE)
    json_store.keep(_file(config), {"instructions": found}, "what was found of lower instructions", "", notes)
    if found != NONE:
        notes.append(f"the next start takes {VARIABLE}={found}, where exact mode holds")


def holds(config: EngineConfig, instructions: str) -> bool:
    """Whether the target is exact with these instructions, in a process of its own."""
    module = ("-P", "-m", "codespec.engine.instructions")  # -P: nothing of the working folder is run
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


def _read(config: EngineConfig) -> str | None:
    """What an earlier start found: one of LOWER, or NONE; None if there was none, or its file is corrupt."""
    what, then = "what was found of lower instructions", "it is looked for again"
    return json_store.load(_file(config), lambda content: str(content.get("instructions")), what, then, [])


def _lower() -> Iterator[str]:
    """Those of LOWER that are lower than what this processor has."""
    features = processor().features
    has = {"AVX512_CORE_BF16": "avx512_bf16", "AVX512_CORE": "avx512f", "AVX2": "avx2"}
    known = [instructions for instructions in LOWER if has[instructions] in features]
    yield from known if "amx_bf16" in features or "avx512_fp16" in features else known[1:]


def _file(config: EngineConfig) -> Path:
    import torch

    machine = (__version__, platform.node(), processor().label, torch.__version__)
    facts = (*machine, config.target, config.dtype, config.target_shape)
    name = hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()
    return cache_folder() / "instructions" / f"{name}.json"


def main(arguments: list[str]) -> int:
    """Target, number format and shape; 0 if it is exact with the instructions of this process."""
    from codespec.models.batch_invariance import LENGTH
    from codespec.models.call_search import settle
    from codespec.models.loader import load_model
    from codespec.models.shapes import SHAPES

    target, dtype, shape = arguments
    model = load_model(target, dtype=dtype, shape=SHAPES.get(shape))
    model.allocate(3, LENGTH)
    return 1 if settle(model).variance else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
