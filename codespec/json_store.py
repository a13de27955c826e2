"""Small JSON files in the user's own folders, written whole or not at all, and set aside where they are corrupt. Knows
folders; knows nothing of contents.
"""

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
CORRUPT = ".corrupt"  # behind the name of a file that was set aside
_UNFIT = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # what reading foreign values raises
Result = TypeVar("Result")


def load(
    file: Path, convert: Callable[[Mapping[str, Any]], Result], what: str, then: str, notes: MutableSequence[str]
) -> Result | None:
    """What `convert` makes of what `write` wrote; None where there is no file, or none that can be used. `notes` say
    `what` was not read and what happens `then`; a file that is corrupt or of another format is set aside, so that it
    is said once and nothing is lost.
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
    """Gives the file another name; a clause that says which, "" where the folder does not let it."""
    aside = file.with_name(file.name + CORRUPT)
    try:
        os.replace(file, aside)
    except OSError:
        return ""
    return f", and the file is set aside as {aside}"


def _clip(text: str) -> str:
    return " ".join(text.split())[:160]


class Unkept(str):
    """A note that something can't be kept on disk: the user must make room, or mend a folder's rights."""


def keep(file: Path, content: Mapping[str, Any], what: str, then: str, notes: MutableSequence[str]) -> bool:
    """Writes the file and returns True. Where it can't be written, `notes` say `what` can't be kept and what happens
    `then` ("": nothing that the user notices).
    """
    try:
        write(file, content)
    except OSError as error:
        clause = f"{what} can't be kept in {file.parent} ({error.strerror})"
        notes.append(Unkept(f"{clause}: {then}" if then else clause))
        return False
    return True


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
