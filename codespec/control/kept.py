"""Small JSON files in the user's own folders, written whole or not at all. Knows folders; knows nothing of contents."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMAT = 1


def cache_folder() -> Path:
    """Where what can be measured again is kept: $XDG_CACHE_HOME/codespec."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "codespec"


def read(file: Path) -> Mapping[str, Any] | None:
    """What `write` wrote, None where there is no file. Raises ValueError where it is corrupt or of another format,
    OSError where it can't be read.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    values = json.loads(text)
    if not isinstance(values, dict) or values.get("format") != FORMAT or not isinstance(values.get("content"), dict):
        raise ValueError("not a file of this version")
    content: Mapping[str, Any] = values["content"]
    return content


def write(file: Path, content: Mapping[str, Any]) -> None:
    """Replaces the file in one step; readers see the old one or the new one. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.stem, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump({"format": FORMAT, "content": content}, out, separators=(",", ":"))
        os.replace(name, file)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
