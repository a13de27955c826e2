"""Normalize document URIs and convert them to paths.

Editors spell a document's URI in several ways, and some escape nothing. In a file URI, a `?` or `#` is part of the
name: the protocol gives files neither queries nor fragments, and without that part a secret file could look harmless.
"""

from __future__ import annotations

import base64
import re
import sys
from itertools import islice
from typing import NamedTuple
from unicodedata import normalize
from urllib.parse import quote, unquote_to_bytes

WINDOWS, MAC = sys.platform == "win32", sys.platform == "darwin"
CELL = "vscode-notebook-cell"
NAMES_FILES = ("file", "untitled")  # schemes whose path is that of a file, saved or not
MOST_MARKS = 32  # maximum number of `?` and `#` to try as the end of a path
_PARTS = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/?#]*))?([^?#]*)(.*)", re.DOTALL)
_DRIVE = re.compile(rb"/[A-Za-z]:(?=/|\Z)")
_MARK = re.compile(rb"[?#]")
_ENDS = re.compile(rb"(?<=[^/. ])[. ]+(?=/|\Z)")  # trailing dots and spaces of names, which Windows ignores


class UriParts(NamedTuple):
    """The parts of a URI: the lower-case scheme, the host, the path, and the rest (query and fragment, with marks).

    All but the scheme are decoded to bytes, because file names need not be UTF-8.
    """

    scheme: str
    host: bytes
    path: bytes
    rest: bytes


def split_uri(uri: str, windows: bool = WINDOWS) -> UriParts:
    """Split a client's document URI, which may be any text."""
    scheme, host, path, rest = _PARTS.match(uri).groups("")  # type: ignore[union-attr]  # it matches any text
    if scheme.lower() in NAMES_FILES:
        path, rest = ("/" if host and rest and not path else "") + path + rest, ""
    parts = UriParts(scheme.lower(), _decode(host).lower(), _composed(_decode(path)), _decode(rest))
    return _as_file(parts, windows) if parts.scheme == "file" else parts


def canonical(uri: str, windows: bool = WINDOWS) -> str:
    """Return the canonical spelling of a URI."""
    scheme, host, path, rest = split_uri(uri, windows)
    if scheme in NAMES_FILES and _DRIVE.match(path):  # on every system, like VS Code: folders aren't named /C:
        path = path[:2].lower() + path[2:]
    head = f"{scheme}:" if scheme else ""
    authority = f"//{quote(host, safe='')}" if host or path.startswith(b"/") else ""
    return head + authority + quote(path, safe="/:" if head else "/") + quote(rest, safe="?#")


def path_of(uri: str, windows: bool = WINDOWS) -> str:
    """Return the native path of a file URI. For other schemes, return the URI's path, for display only."""
    scheme, host, path, _ = split_uri(uri, windows)
    text = path.decode("utf-8", "surrogateescape")  # as Python represents file names
    if scheme != "file" or not windows:
        return text
    if host:
        return f"//{host.decode('utf-8', 'replace')}{text}".replace("/", "\\")
    return (text[1:] if _DRIVE.match(path) else text).replace("/", "\\")


def notebook_of(uri: str) -> str:
    """Return the canonical URI of the notebook from the URI of a cell, or "" if it isn't a cell URI.

    VS Code's cell URIs have the notebook's path; the fragment is the cell number, an `s`, and the scheme in Base64.
    """
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
    """Return other paths that a careless client may mean by a URI.

    A `?` or `#` may begin a query or fragment after all, or the host may be the first folder.
    """
    path, host = path_of(uri, windows), split_uri(uri, windows).host
    cut = [path[: mark.start()] for mark in islice(re.finditer("[?#]", path), MOST_MARKS)]
    return [*cut, f"/{host.decode('utf-8', 'replace')}{path}"] if host and not windows else cut


def _as_file(parts: UriParts, windows: bool) -> UriParts:
    """Normalize the parts of a file URI: drop names of this machine and, on Windows, ignored characters in names."""
    scheme, host, path, rest = parts
    if host == b"localhost":
        host = b""
    if windows:
        path = _ENDS.sub(b"", path.replace(b"\\", b"/"))
    if path.startswith(b"//") and not host:  # from a path with an extra slash, or from \\\\server\\share
        path = path.lstrip(b"/")
        host, _, path = path.partition(b"/") if windows else (b"", b"", path)
        host, path = host.lower(), b"/" + path
    return UriParts(scheme, host, _without_dots(path), rest)


def _without_dots(path: bytes) -> bytes:
    """Resolve `.` and `..` and drop empty names, as RFC 3986 and editors do; a folder may end with a slash.

    Otherwise one file would be two documents, and an anchored pattern of an ignore file would miss it. A path with a
    `?` or `#` stays, since what follows it may be no path (`other_paths`).
    """
    if not path.startswith(b"/") or _MARK.search(path):
        return path
    kept: list[bytes] = []
    root = int(_DRIVE.match(path) is not None)
    for name in path.split(b"/"):
        if name == b"..":
            del kept[max(root, len(kept) - 1) :]
        elif name not in (b"", b"."):
            kept.append(name)
    found = b"/" + b"/".join(kept)
    return found + b"/" if _DRIVE.fullmatch(found) else found


def _composed(path: bytes) -> bytes:
    """Return a path in one normal form on a Mac, whose file systems take every form for the same file."""
    if not MAC or path.isascii():
        return path
    return normalize("NFC", path.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _decode(text: str) -> bytes:
    return unquote_to_bytes(text.encode("utf-8", "surrogatepass"))
