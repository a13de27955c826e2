"""Serve the page at /, an editor in the browser that demonstrates speculation. Its files are built from web/."""

from __future__ import annotations

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


async def send_file(request: web.Request) -> web.StreamResponse:
    """Serve a file of the page, by default index.html. Only the names in TYPES reach the file system."""
    name = request.match_info.get("name", "index.html")
    if name not in TYPES:
        raise web.HTTPNotFound
    return web.FileResponse(FOLDER / name, headers={**HEADERS, "Content-Type": f"{TYPES[name]}; charset=utf-8"})


ROUTES = [web.get("/", send_file), web.get("/page/{name}", send_file)]
# Open without a token: the page contains no data, and it prompts for the token.
OPEN_PATHS = frozenset({"/", "/page/{name}"})
