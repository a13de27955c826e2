"""Serve the page at /: an editor in the browser that demonstrates speculation.

Paths are looked up in a table, never in the file system, so no other file can be reached. The files are built from
web/.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from aiohttp import web

FOLDER = Path(__file__).with_name("page")
TYPES = {
    "index.html": "text/html",
    "codespec.js": "text/javascript",
    "codespec.css": "text/css",
    "icon.svg": "image/svg+xml",
    "licences.txt": "text/plain",
}
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "Cache-Control": "no-cache",  # cached but revalidated: a newer daemon has a newer page
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page and its ETag."""

    data: bytes
    tag: str


@cache
def page_file(name: str) -> PageFile:
    """Return a file of TYPES; read it only once."""
    data = (FOLDER / name).read_bytes()
    return PageFile(data, hashlib.sha256(data).hexdigest()[:32])


async def show_page(request: web.Request) -> web.StreamResponse:
    """Serve index.html."""
    return _send(request, "index.html")


async def send_file(request: web.Request) -> web.StreamResponse:
    """Serve a file of the page."""
    name = request.match_info["name"]
    if name not in TYPES:
        raise web.HTTPNotFound
    return _send(request, name)


def _send(request: web.Request, name: str) -> web.Response:
    file = page_file(name)
    response = web.Response(headers=HEADERS)
    response.etag = file.tag
    known = request.if_none_match or ()
    if any(tag.value in (file.tag, "*") for tag in known):
        response.set_status(304)
        return response
    response.content_type, response.charset = TYPES[name], "utf-8"
    response.body = file.data
    return response


ROUTES = [web.get("/", show_page), web.get("/page/{name}", send_file)]
# Open without a token: the page contains no data, and it prompts for the token.
OPEN_PATHS = frozenset({"/", "/page/{name}"})
