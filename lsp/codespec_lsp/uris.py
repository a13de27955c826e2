"""URIs of documents: which ones name the same document, and the path that one names.

Editors spell a document in several ways, and some escape nothing. In a file's URI a `?` or a `#` belongs to a name: the
protocol gives files neither queries nor fragments, and what a reader would drop there decides whether a file is secret.
"""

from __future__ import annotations

import base64
import re
import sys
from itertools import islice
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

WINDOWS = sys.platform == "win32"
CELL = "vscode-notebook-cell"
NAMES_FILES = ("file", "untitled")  # schemes whose path is a file's, be it saved or not
MOST_MARKS = 32  # of queries and fragments
_PARTS = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/?#]*))?([^?#]*)(.*)", re.DOTALL)
_DRIVE = re.compile(rb"/[A-Za-z]:(?=/|\Z)")
_ENDS = re.compile(rb"(?<=[^/. ])[. ]+(?=/|\Z)")  # of names: Windows leaves these dots and spaces out


class Parts(NamedTuple):
    """A URI's scheme in lower case; its host, its path and the rest (a query and a fragment, with their marks), decoded
    to bytes: names of files need not be UTF-8."""

    scheme: str
    host: bytes
    path: bytes
    rest: bytes


def split_uri(uri: str, windows: bool = WINDOWS) -> Parts:
    """The parts of whatever a client calls a document."""
    scheme, host, path, rest = _PARTS.match(uri).groups("")  # type: ignore[union-attr]  # it matches any text
    if scheme.lower() in NAMES_FILES:
        path, rest = ("/" if host and rest and not path else "") + path + rest, ""
    parts = Parts(scheme.lower(), _decode(host).lower(), _decode(path), _decode(rest))
    return _as_file(parts, windows) if parts.scheme == "file" else parts


def canonical(uri: str, windows: bool = WINDOWS) -> str:
    """One spelling for all those of the same document; the path is the same, but for the case of a drive's letter."""
    scheme, host, path, rest = split_uri(uri, windows)
    if scheme in NAMES_FILES and _DRIVE.match(path):  # on every system, as VS Code does: no folder is called /C:
        path = path[:2].lower() + path[2:]
    head = f"{scheme}:" if scheme else ""
    authority = f"//{quote(host, safe='')}" if host or path.startswith(b"/") else ""
    return head + authority + quote(path, safe="/:" if head else "/") + quote(rest, safe="?#")


def path_of(uri: str, windows: bool = WINDOWS) -> str:
    """The path of a file's URI as its system spells it; for others the part after the scheme, which is a name to look
    at only."""
    scheme, host, path, _ = split_uri(uri, windows)
    text = path.decode("utf-8", "surrogateescape")  # as Python has file names
    if scheme != "file" or not windows:
        return text
    if host:
        return f"//{host.decode('utf-8', 'replace')}{text}".replace("/", "\\")
    return (text[1:] if _DRIVE.match(path) else text).replace("/", "\\")


def notebook_of(uri: str) -> str:
    """The canonical URI of the notebook that a cell's URI names, as VS Code makes them: with the notebook's path, and
    its scheme in Base64 behind the cell's number and an s. "" for what is no such URI."""
    scheme, host, path, rest = split_uri(uri)
    if scheme != CELL:
        return ""
    try:
        own = base64.urlsafe_b64decode(rest.partition(b"s")[2].rstrip(b"=") + b"==").decode("ascii")
    except ValueError:
        return ""
    authority = f"//{quote(host, safe='')}" if host or path.startswith(b"/") else ""
    return canonical(f"{own}:{authority}{quote(path)}") if own else ""


def other_paths(uri: str, windows: bool = WINDOWS) -> list[str]:
    """The paths of files that a careless client may mean by a URI: its end is a query or a fragment after all, or what
    looks like a host is the first folder."""
    path, host = path_of(uri, windows), split_uri(uri, windows).host
    cut = [path[: mark.start()] for mark in islice(re.finditer("[?#]", path), MOST_MARKS)]
    return [*cut, f"/{host.decode('utf-8', 'replace')}{path}"] if host and not windows else cut


def _as_file(parts: Parts, windows: bool) -> Parts:
    """The same without other ways to name this machine, and on Windows with its names as they are looked up."""
    scheme, host, path, rest = parts
    if host == b"localhost":
        host = b""
    if windows:
        path = _ENDS.sub(b"", path.replace(b"\\", b"/"))
    if path.startswith(b"//") and not host:  # from a path with a / too many, or from \\\\server\\share
        path = path.lstrip(b"/")
        host, _, path = path.partition(b"/") if windows else (b"", b"", path)
        host, path = host.lower(), b"/" + path
    return Parts(scheme, host, path, rest)


def _decode(text: str) -> bytes:
    return unquote_to_bytes(text.encode("utf-8", "surrogatepass"))
