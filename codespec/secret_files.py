"""Decide by path whether a file may contain secrets and so must not be used as context.

The daemon and the language server share this list. The file system is not accessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import translate
from unicodedata import category
from urllib.parse import unquote

# Keys, tokens, passwords and settings files that may contain them. Matching ignores case.
SECRET_FILES = (
    *(".env*", "*.env", ".dev.vars", ".npmrc", ".pypirc", ".git-credentials", "credentials*", "secrets.*"),
    *(".netrc", "_netrc", ".pgpass", "pgpass.conf", "*.tfstate", "*.tfstate.*", "*.kdbx"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.crt", "*.cert", "*.p12", "*.pfx"),
)
MOST_ENCODED = 4  # levels of percent-encoding to decode
MOST_NAME = 256  # characters; no file name is longer
_MARK = re.compile("[?#]")
_SECRET = re.compile("|".join(translate(glob) for glob in SECRET_FILES), re.IGNORECASE)


def is_secret(path: str) -> bool:
    """Return whether the last component of a path or URI, in any encoding, matches SECRET_FILES."""
    return any(_SECRET.fullmatch(name) for form in _forms(path) for last in set(_lasts(form)) for name in _names(last))


def _forms(path: str) -> list[str]:
    """Return the path as given, followed by its percent-decoded forms."""
    forms = [path]
    while len(forms) <= MOST_ENCODED and (decoded := unquote(forms[-1])) != forms[-1]:
        forms.append(decoded)
    return forms


def _lasts(path: str) -> Iterator[str]:
    """Yield the last path component, and the last component if a `?` or `#` started a query or a fragment.

    Every `?` and `#` is tried, because any of them may start one.
    """
    last = ""
    for part in re.split(r"[/\\]", path):
        for mark in _MARK.finditer(part[:MOST_NAME]):
            yield part[: mark.start()] or last
        last = last if part in ("", ".") else part
    yield last


def _names(last: str) -> set[str]:
    """Return the variants of a last component: whole, split at `:` and `;`, and without ignored characters.

    Windows ignores trailing dots and spaces, and a colon introduces a stream's name; a semicolon introduces a URI's
    parameter. Some Macs ignore invisible characters (zero width, direction).
    """
    seen = last if last.isascii() else "".join(each for each in last if category(each) != "Cf")
    return {name for piece in (last, seen, *re.split("[:;]", seen)) for name in (piece, piece.rstrip(". "))}
