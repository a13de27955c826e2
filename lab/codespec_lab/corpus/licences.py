"""Decide from licence metadata whether a package, or a file of a Debian source package, may be trained on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

PERMISSIVE = frozenset(
    {
        "MIT",
        "BSD-2-CLAUSE",
        "BSD-3-CLAUSE",
        "BSD",
        "APACHE-2.0",
        "ISC",
        "PSF-2.0",
        "MIT-0",
        "0BSD",
        "BLUEOAK-1.0.0",
        "ZLIB",
        "UNLICENSE",
        "CC0-1.0",
        "PYTHON-2.0",
        "MIT-CMU",
        "HPND",
        "BSL-1.0",
        "CURL",
        "X11",
        "LIBPNG",
        "POSTGRESQL",
    }
)

_CLASSIFIERS = {
    "MIT License": "MIT",
    "BSD License": "BSD",
    "Apache Software License": "APACHE-2.0",
    "ISC License (ISCL)": "ISC",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "UNLICENSE",
}

# Spellings of the old free-text `License` field. A long field contains the licence's text: do not guess from it.
_FREE_TEXT = {
    "mit": "MIT",
    "mit license": "MIT",
    "the mit license": "MIT",
    "expat": "MIT",
    "bsd": "BSD",
    "bsd license": "BSD",
    "new bsd": "BSD-3-CLAUSE",
    "new bsd license": "BSD-3-CLAUSE",
    "bsd-3-clause": "BSD-3-CLAUSE",
    "3-clause bsd": "BSD-3-CLAUSE",
    "3-clause bsd license": "BSD-3-CLAUSE",
    "bsd 3-clause": "BSD-3-CLAUSE",
    "bsd 3-clause license": "BSD-3-CLAUSE",
    "modified bsd license": "BSD-3-CLAUSE",
    "bsd-2-clause": "BSD-2-CLAUSE",
    "apache": "APACHE-2.0",
    "apache 2": "APACHE-2.0",
    "apache 2.0": "APACHE-2.0",
    "apache-2.0": "APACHE-2.0",
    "apache 2.0 license": "APACHE-2.0",
    "apache license 2.0": "APACHE-2.0",
    "apache license, version 2.0": "APACHE-2.0",
    "apache license version 2.0": "APACHE-2.0",
    "isc": "ISC",
    "psf": "PSF-2.0",
    "psf license": "PSF-2.0",
    "python software foundation license": "PSF-2.0",
}

# Debian's short names that differ from SPDX.
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


def permits_expression(expression: str) -> bool:
    """Return whether an SPDX expression allows a permissive choice: every part of an AND, or one part of an OR."""
    flat = expression.replace("(", " ").replace(")", " ").strip()
    if not flat or re.search(r"\bWITH\b", flat):
        return False
    if re.search(r"\bAND\b", flat) and re.search(r"\bOR\b", flat):
        return all(part in PERMISSIVE for part in re.split(r"\s+(?:AND|OR)\s+", flat.upper()))
    if re.search(r"\bOR\b", flat):
        return any(part.strip().upper() in PERMISSIVE for part in re.split(r"\bOR\b", flat))
    return all(part.strip().upper() in PERMISSIVE for part in re.split(r"\bAND\b", flat))


def permissive_licence(expression: str | None, free_text: str | None, classifiers: Iterable[str]) -> str | None:
    """Return the licence if the metadata clearly names a permissive one; None if not, or if it is contradictory."""
    if expression:
        return expression if permits_expression(expression) else None
    named = [c.rsplit(" :: ", 1)[-1] for c in classifiers if c.startswith("License :: ")]
    named = [name for name in named if name != "OSI Approved"]
    if named:
        known = [_CLASSIFIERS.get(name) for name in named]
        return " AND ".join(sorted({k for k in known if k})) if all(known) else None
    text = " ".join((free_text or "").lower().split()).rstrip(".")
    if text in _FREE_TEXT:
        return _FREE_TEXT[text]
    return free_text if free_text and permits_expression(free_text) else None


@dataclass(frozen=True, slots=True)
class LicenceRule:
    """Rule that puts files whose path matches `pattern` under `licence`, an SPDX-like expression."""

    pattern: re.Pattern[str]
    licence: str


def parse_copyright(text: str) -> list[LicenceRule]:
    """Return the rules of a Debian copyright file (DEP 5), in order; empty if it is not machine-readable."""
    if not re.match(r"Format(-Specification)?:", text.lstrip(), re.I):
        return []
    rules = []
    for paragraph in re.split(r"\n[ \t]*\n", text):
        fields = _parse_fields(paragraph)
        if "files" in fields and "license" in fields:
            licence = _to_spdx(fields["license"].partition("\n")[0])
            rules += [LicenceRule(_glob(glob), licence) for glob in fields["files"].split()]
    return rules


def licence_of(path: str, rules: list[LicenceRule]) -> str | None:
    """Return the licence of the last rule that matches a path in the source tree, or None if none matches."""
    return next((rule.licence for rule in reversed(rules) if rule.pattern.fullmatch(path)), None)


def _parse_fields(paragraph: str) -> dict[str, str]:
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


def _to_spdx(name: str) -> str:
    words = re.sub(r"[,/]|\band/or\b", " or " if "/" in name else " ", name).split()
    upper = {"or": "OR", "and": "AND", "with": "WITH"}
    return " ".join(upper.get(word.lower()) or _SPDX.get(word.lower(), word) for word in words)


def _glob(pattern: str) -> re.Pattern[str]:
    """Compile a glob: `*` matches any characters, slashes included; `?` matches one character."""
    return re.compile("".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern), re.S)
