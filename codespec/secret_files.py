"""Whether a file's text may be taken as context, by its path: one list for the daemon and the language server.

Knows names and the ways to write them; asks no file system.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import translate
from urllib.parse import unquote

# Keys, tokens, passwords and what keeps them beside settings. Names are told apart without regard to case.
SECRET_FILES = (
    *(".env*", "*.env", ".dev.vars", ".npmrc", ".pypirc", ".git-credentials", "credentials*", "secrets.*"),
    *(".netrc", "_netrc", ".pgpass", "pgpass.conf", "*.tfstate", "*.tfstate.*", "*.kdbx"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.crt", "*.cert", "*.p12", "*.pfx"),
)
MOST_ENCODED = 4  # times that a name may be percent-encoded
MOST_NAME = 256  # characters: no file's name is longer
_MARK = re.compile("[?#]")
_SECRET = re.compile("|".join(translate(glob) for glob in SECRET_FILES), re.IGNORECASE)


def is_secret(path: str) -> bool:
    """Whether a path's (or a URI's) last part is one that secrets are kept under, however it is written."""
    return any(_SECRET.fullmatch(name) for form in _forms(path) for last in _lasts(form) for name in _names(last))


def _forms(path: str) -> list[str]:
    """The path as it is and as it may be meant: percent-encoded, once or more often."""
    forms = [path]
    while len(forms) <= MOST_ENCODED and (decoded := unquote(forms[-1])) != forms[-1]:
        forms.append(decoded)
    return forms


def _lasts(path: str) -> Iterator[str]:
    """The last part, and what would be the last if a ? or a # began a query or a fragment: any of them may."""
    last = ""
    for part in re.split(r"[/\\]", path):
        for mark in _MARK.finditer(part[:MOST_NAME]):
            yield part[: mark.start()] or last
        last = part or last
    yield last


def _names(last: str) -> set[str]:
    """A last part, whole and by pieces, and without what Windows leaves out: a stream's name behind a colon, dots and
    spaces at the end."""
    return {name for piece in (last, *last.split(":")) for name in (piece, piece.rstrip(". "))}
