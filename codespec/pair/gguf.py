"""From a GGUF file to the folder that it is converted to once, in the cache (see `made`), by the file's hash.

Knows how such files are called and what a converted folder says of its source; knows nothing of what a GGUF file says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from codespec.errors import ModelError
from codespec.pair.made import SOURCE, Making, Say, hash_once, made

ENDING = ".gguf"
CONVERTER = "codespec.models.gguf.convert"


def is_gguf(path: Path) -> bool:
    """Whether a path means a GGUF file, by its name."""
    return path.suffix.lower() == ENDING


def converted(file: Path, say: Say | None = None) -> Path:
    """The folder of a GGUF file, converted now if it never was; ModelError in one sentence if it can't be."""
    try:
        return made(
            Making(
                hash_once(file),
                CONVERTER,
                (str(file.absolute()),),
                told=f"converting {file.name} (once)",
                waiting="another process converts this file: waiting for it",
                failed=f"{file} could not be converted",
                nbytes=file.stat().st_size,
            ),
            say,
        )
    except OSError as error:
        place = error.filename or file
        raise ModelError(f"{place} can't be used ({error.strerror}): check the path and its permissions.") from error


def read_source(config: Any) -> str:
    """How the weights of a converted model were stored, by its config.json: "Q4_1"; "" for any other model."""
    source = config.get(SOURCE)
    return str(source.get("quantization", "")) if isinstance(source, dict) else ""
