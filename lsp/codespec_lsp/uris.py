"""Documents' URIs, taken apart, and the paths that they name. Knows RFC 3986's parts and how Windows and Unix spell
paths; asks no file system.
"""

from __future__ import annotations

import re
import sys
from typing import NamedTuple
from urllib.parse import unquote

_PARTS = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/?#]*))?([^?#]*)", re.DOTALL)
_DRIVE = re.compile(r"/([A-Za-z]:)(?=/|\Z)")


class Parts(NamedTuple):
    """A URI's scheme in lower case, its host and its path, the latter two as they are meant."""

    scheme: str
    host: str
    path: str


def split_uri(uri: str) -> Parts:
    """The parts of whatever a client calls a document."""
    scheme, host, path = _PARTS.match(uri).groups("")  # type: ignore[union-attr]  # it matches any text
    return Parts(scheme.lower(), unquote(host), unquote(path))


def path_of(uri: str, windows: bool = sys.platform == "win32") -> str:
    """The path of a file: URI as its system spells it; for others the part after the scheme, which is a name to look at
    only."""
    scheme, host, path = split_uri(uri)
    if scheme != "file" or not windows:
        return path
    if host and host != "localhost":
        return f"//{host}{path}".replace("/", "\\")
    drive = _DRIVE.match(path)
    return (path[1:] if drive else path).replace("/", "\\")
