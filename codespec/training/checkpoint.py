"""Saves and restores a run's whole state, atomically and with a checksum; does not know what is in it."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch

from codespec.errors import TrainingError

_DIGEST = 32


def write_atomically(path: Path, data: bytes) -> None:
    """Put `data` at `path` in one step, so that a kill leaves the old file or the new one.

    Raises TrainingError if it cannot, with the scratch file removed.
    """
    scratch = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        reason = f"{path} cannot be written ({error.strerror})"
        raise TrainingError(f"{reason}; free some space or choose another folder.") from error


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a state of tensors and plain values."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    write_atomically(path, hashlib.sha256(payload).digest() + payload)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a state back. Raises TrainingError if the file is missing or not what was written."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise TrainingError(f"There is no checkpoint at {path}: train first, without --resume.") from error
    payload = data[_DIGEST:]
    if not payload or hashlib.sha256(payload).digest() != data[:_DIGEST]:
        raise TrainingError(f"The checkpoint {path} is corrupted; delete it and start without --resume.")
    state: dict[str, Any] = torch.load(io.BytesIO(payload), weights_only=True)
    return state
