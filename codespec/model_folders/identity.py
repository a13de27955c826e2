"""Compare two engines: the settings and models they must share to write the same text and the same drafts.

A daemon reports its identity as JSON; a command that could use it compares the identity with its own settings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from codespec.config import EngineConfig
from codespec.errors import ModelError
from codespec.model_folders.find import find_fetched, find_local

TEXT_SETTINGS = (
    "dtype", "device", "mode", "target_shape", "tensor_parallel", "context", "first_answer_ms", "cache_mb", "max_batch",
)  # fmt: skip
DRAFT_SETTINGS = (
    "drafter_device", "drafter_dtype", "speculate", "proposers", "policy", "caps", "draft_tokens", "min_confidence",
    "warmup",
)  # fmt: skip


def identity_of(config: EngineConfig) -> dict[str, Any]:
    """Return the settings that decide texts and drafts, with a digest of each model: a path reveals too much."""
    models = {"target": model_digest(config.target), "drafter": model_digest(config.drafter)}
    models["head"] = model_digest(config.head)
    return {**models, **{name: getattr(config, name) for name in (*TEXT_SETTINGS, *DRAFT_SETTINGS)}}


def find_difference(mine: Mapping[str, Any], other: Mapping[str, Any], *, drafts: bool) -> str:
    """Return the first difference that affects another engine's text, or with `drafts` its drafts; "" if none."""
    models = ("target", "drafter", "head") if drafts else ("target",)
    for name in models:
        if mine[name] != other.get(name):
            return f"it runs another {name}"
    for name in (*TEXT_SETTINGS, *(DRAFT_SETTINGS if drafts else ())):
        if mine[name] != other.get(name):
            return f"its {name} is {other.get(name)!r} and not {mine[name]!r}"
    return ""


def model_digest(name: str) -> str:
    """Return a digest of a model's path and its files' names, sizes and mtimes, or "" if it is not here."""
    try:
        path = None if name == "none" else find_local(name) or find_fetched(name)
        if path is None:
            return ""
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        parts = [str(path.resolve()), *(_describe(file) for file in files if file.is_file())]
    except (ModelError, OSError):
        return ""
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()[:16]


def _describe(file: Path) -> str:
    state = file.stat()
    return f"{file.name} {state.st_size} {state.st_mtime_ns}"
