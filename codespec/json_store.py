"""Small JSON files in the user's folders. Writes are atomic, and corrupt files are renamed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, MutableSequence
from pathlib import Path
from typing import Any, TypeVar

from codespec.bounded_json import read_json_file
from codespec.regular_file import Unreadable

FORMAT = 1
CORRUPT = ".corrupt"  # suffix of a renamed corrupt file
_UNFIT = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # conversion errors
Result = TypeVar("Result")


def load(
    file: Path, convert: Callable[[Mapping[str, Any]], Result], what: str, then: str, notes: MutableSequence[str]
) -> Result | None:
    """Read a file written by `write` and pass its content to `convert`. Return None if it is missing or unusable.

    `notes` receives a message that `what` can't be read, with `then` as the consequence. A file that is corrupt or has
    another format is renamed, so that the message appears once and no data is lost.
    """
    try:
        return convert(_content(read_json_file(file, finite=True)))
    except FileNotFoundError:
        return None
    except (Unreadable, *_UNFIT) as error:
        notes.append(f"{what} can't be read ({_clip(str(error))}): {then}{_set_aside(file)}")
    except OSError as error:
        notes.append(f"{what} can't be read ({error.strerror}): {then}")
    return None


def _content(values: Any) -> Mapping[str, Any]:
    if not isinstance(values, dict) or values.get("format") != FORMAT or not isinstance(values.get("content"), dict):
        raise ValueError("not a file of this version")
    content: Mapping[str, Any] = values["content"]
    return content


def _set_aside(file: Path) -> str:
    """Rename the file. Return a clause with the new name, or "" if the rename failed."""
    aside = file.with_name(file.name + CORRUPT)
    try:
        os.replace(file, aside)
    except OSError:
        return ""
    return f", and the file is set aside as {aside}"


def _clip(text: str) -> str:
    return " ".join(text.split())[:160]


class Unkept(str):
    """A note that data can't be saved to disk. The user must free space or fix a folder's permissions."""


def keep(file: Path, content: Mapping[str, Any], what: str, then: str, notes: MutableSequence[str]) -> bool:
    """Write the file and return True on success.

    If it can't be written, return False and add a note that `what` can't be kept, with `then` as the consequence ("":
    no visible effect).
    """
    try:
        write(file, content)
    except OSError as error:
        clause = f"{what} can't be kept in {file.parent} ({error.strerror})"
        notes.append(Unkept(f"{clause}: {then}" if then else clause))
        return False
    return True


def write(file: Path, content: Mapping[str, Any]) -> None:
    """Replace the file atomically: readers see either the old or the new content. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.stem, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump({"format": FORMAT, "content": content}, out, separators=(",", ":"))
        os.replace(name, file)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
