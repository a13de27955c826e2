"""Reads Debian's machine-readable copyright files: which licence governs which file of a source package.

Knows the format (DEP 5: paragraphs of `Files` globs and a `License` name, the last match wins), not what is permissive.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Debian's short names where SPDX has another.
_SPDX = {
    "expat": "MIT",
    "go": "BSD-3-Clause",
    "bsd-3-go": "BSD-3-Clause",
    "bsd-3-clauses": "BSD-3-Clause",
    "bsd-3-clause~google": "BSD-3-Clause",
    "boost-1.0": "BSL-1.0",
    "apache-2": "Apache-2.0",
    "psf-2": "PSF-2.0",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """Files whose path matches `pattern` are under `licence`, an SPDX-like expression."""

    pattern: re.Pattern[str]
    licence: str


def parse_copyright(text: str) -> list[Rule]:
    """The file rules in their order; empty where the file is not machine-readable."""
    if not re.match(r"Format(-Specification)?:", text.lstrip(), re.I):
        return []
    rules = []
    for paragraph in re.split(r"\n[ \t]*\n", text):
        fields = _fields(paragraph)
        if "files" in fields and "license" in fields:
            licence = _expression(fields["license"].partition("\n")[0])
            rules += [Rule(_glob(glob), licence) for glob in fields["files"].split()]
    return rules


def licence_of(path: str, rules: list[Rule]) -> str | None:
    """The licence expression of a file (path inside the source tree); None where no rule speaks of it."""
    return next((rule.licence for rule in reversed(rules) if rule.pattern.fullmatch(path)), None)


def _fields(paragraph: str) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in paragraph.splitlines():
        head, colon, rest = line.partition(":")
        if colon and re.fullmatch(r"[A-Za-z-]+", head):
            name = head.lower()
            found[name] = rest.strip()
        elif name and line[:1].isspace():
            found[name] += "\n" + line.strip()
    return found


def _expression(said: str) -> str:
    words = re.sub(r"[,/]|\band/or\b", " or " if "/" in said else " ", said).split()
    upper = {"or": "OR", "and": "AND", "with": "WITH"}
    return " ".join(upper.get(word.lower()) or _SPDX.get(word.lower(), word) for word in words)


def _glob(pattern: str) -> re.Pattern[str]:
    """`*` stands for any run of characters, slashes too; `?` for one."""
    return re.compile("".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern), re.S)
