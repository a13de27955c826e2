"""Keep results in small JSON files in the user's folders. Writes are atomic, and corrupt files are renamed."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, MutableSequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from codespec.bounded_json import read_json_file
from codespec.regular_file import Unreadable

FORMAT = 1
CORRUPT = ".corrupt"  # suffix of a renamed corrupt file
_UNFIT = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # conversion errors
Result = TypeVar("Result")


class Unkept(str):
    """A note that data can't be saved to disk. The user must free space or fix a folder's permissions."""


@dataclass(frozen=True, slots=True)
class Kept(Generic[Result]):
    """A file with one result. Errors of the file are noted, never raised.

    `parse` raises ArithmeticError, AttributeError, LookupError, TypeError or ValueError for content that `spell` never
    returns. Notes call the result `what`. `again` is the consequence of a corrupt file, `each` that of a folder that
    can't be written.
    """

    file: Path
    what: str
    parse: Callable[[Mapping[str, Any]], Result]
    spell: Callable[[Result], Mapping[str, Any]]
    again: str = "it is measured again"
    each: str = "each start measures it again"

    def get(self, measure: Callable[[], Result], notes: MutableSequence[str]) -> Result:
        """Return the kept result, or measure it now and keep it."""
        kept = self.load(notes)
        if kept is None:
            kept = measure()
            self.save(kept, notes)
        return kept

    def load(self, notes: MutableSequence[str]) -> Result | None:
        """Return the kept result, or None if the file is missing or unusable.

        A file that is corrupt or has another format is renamed: it is noted once, and no data is lost.
        """
        try:
            return self.parse(_content(read_json_file(self.file, finite=True)))
        except FileNotFoundError:
            return None
        except (Unreadable, *_UNFIT) as error:
            reason, aside = " ".join(str(error).split())[:160], self._set_aside()
        except OSError as error:
            reason, aside = str(error.strerror), ""
        notes.append(f"the kept {self.what} can't be read ({reason}): {self.again}{aside}")
        return None

    def save(self, result: Result, notes: MutableSequence[str]) -> None:
        """Write the file, or note once why it can't be written."""
        try:
            write(self.file, self.spell(result))
        except OSError as error:
            note = f"the {self.what} can't be kept in {self.file.parent} ({error.strerror}): {self.each}"
            if note not in notes:
                notes.append(Unkept(note))

    def _set_aside(self) -> str:
        """Rename the file. Return a clause with the new name, or "" if the rename failed."""
        aside = self.file.with_name(self.file.name + CORRUPT)
        try:
            os.replace(self.file, aside)
        except OSError:
            return ""
        return f", and the file is set aside as {aside}"


def digest(facts: object) -> str:
    """Return 24 hexadecimal digits that identify `repr(facts)`, as the name of a file for one set of facts."""
    return hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()


def _content(values: Any) -> Mapping[str, Any]:
    if not isinstance(values, dict) or values.get("format") != FORMAT or not isinstance(values.get("content"), dict):
        raise ValueError("not a file of this version")
    content: Mapping[str, Any] = values["content"]
    return content


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
