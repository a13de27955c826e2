"""Decides from licence metadata whether a package may be trained on; reads no package files itself."""

from __future__ import annotations

import re
from collections.abc import Iterable

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

# Whole spellings of the old free-text `License` field. A long field is a licence's text: no guessing.
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


def permits_expression(expression: str) -> bool:
    """Whether an SPDX expression leaves a permissive choice: every part of an AND, or one part of an OR."""
    flat = expression.replace("(", " ").replace(")", " ").strip()
    if not flat or re.search(r"\bWITH\b", flat):
        return False
    if re.search(r"\bAND\b", flat) and re.search(r"\bOR\b", flat):
        return all(part in PERMISSIVE for part in re.split(r"\s+(?:AND|OR)\s+", flat.upper()))
    if re.search(r"\bOR\b", flat):
        return any(part.strip().upper() in PERMISSIVE for part in re.split(r"\bOR\b", flat))
    return all(part.strip().upper() in PERMISSIVE for part in re.split(r"\bAND\b", flat))


def permissive_licence(expression: str | None, free_text: str | None, classifiers: Iterable[str]) -> str | None:
    """The licence if the metadata plainly says a permissive one, else None (or if parts disagree)."""
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
