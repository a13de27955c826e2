"""Find the type of the value before the dot at a cursor, by syntax alone: `crate.` after `crate = Crate(...)`.

The nearest row above that says it counts: an annotation, a constructor's call, or a check of the type.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_ROWS = 100  # searched rows above the cursor
MAX_ROW = 400  # characters of a searched row
MAX_NAME = 64  # characters
_RECEIVER = re.compile(r"(?<![\w.)\]])([^\W\d]\w*)(?:\?|!)?(?:\.|->)\w*\Z")
_WRAPPERS = r"(?:(?:Optional|Final|Annotated|Readonly|Box|Arc|Rc)[\[<]\s*)*"  # around the type itself
_TYPE = r"([^\W\d]\w*(?:(?:\.|::)[^\W\d]\w*)*)"
# What may come before the type: references, pointers, lifetimes, quotes, `new`, `await`.
_MARKS = r"""[&*"']*(?:'\w+\s+)?(?:mut\s+|const\s+)*"""
_FORMS = (
    r"\b{name}\s*\??\s*:\s*" + _MARKS + _WRAPPERS + _MARKS + _TYPE,  # name: Type
    r"\b{name}\s*:?=\s*&?(?:await\s+)?(?:new\s+)?" + _TYPE + r"(?:::new)?\s*[({{]",  # name = Type(
    r"\bisinstance\(\s*{name}\s*,\s*\(?\s*" + _TYPE,
    r"\b{name}\s+(?:instanceof|is)\s+" + _TYPE,
    r"\b" + _TYPE + r"(?:<[\w\s,.?]*>)?(?:\s+|\s*[*&]+\s*){name}\s*[=;,):]",  # Type name
    r"\b{name}\s+\*?" + _TYPE + r"\s*[,)]",  # Go's parameters: name *Type
)
_NO_TYPES = frozenset(
    ("return", "new", "await", "const", "let", "var", "val", "auto", "final", "in", "not", "is", "else", "case", "of")
)


def type_before(prefix: str) -> str:
    """Return the type of the value before the dot at the end of a prefix, or ""."""
    *above, line = prefix.rsplit("\n", MAX_ROWS + 1)
    return receiver_type(line, above)


def receiver_type(line: str, above: Sequence[str]) -> str:
    """Return the name of the type of the value before the last dot of `line`, or "" if no row `above` says it.

    `line` is the cursor's row up to the cursor. A type in a module is given without the module.
    """
    found = _RECEIVER.search(line[-MAX_ROW:])
    if found is None or len(found[1]) > MAX_NAME or found[1] in ("self", "this", "super"):
        return ""
    name = re.escape(found[1])
    forms = [re.compile(form.format(name=name)) for form in _FORMS]
    for row in (line[-MAX_ROW:][: found.start()], *reversed(above[-MAX_ROWS:])):
        if found[1] not in row or len(row) > MAX_ROW:
            continue
        for form in forms:
            for message in form.finditer(row):
                last = re.split(r"\.|::", message[1].removesuffix("::new"))[-1]
                if last not in _NO_TYPES and last[:1].isupper():
                    return last
    return ""
