"""What became of a completion: its user's own language server reports what was accepted, and the memory keeps it.

Strict fields in, a word back. Only the daemon's own user is taken from: what others accept is none of its business.
"""

from __future__ import annotations

from pathlib import PurePath

from aiohttp import web

from codespec.errors import RequestError
from codespec.memory.accepted import Accepted
from codespec.secret_files import is_secret
from codespec.server.daemon import DAEMON
from codespec.server.scopes import SCOPES
from codespec.server.wire import Fields, Refused, read_fields, reply

FIELDS = ("root", "path", "language", "lead", "text", "following")
MOST_NAME = 4096  # characters of a path
MOST_TEXT = 16 * 1024  # characters of each text


async def report(request: web.Request) -> web.StreamResponse:
    """Keeps an accepted text in a moment; `kept` says whether anything is kept at all."""
    with await read_fields(request) as fields:
        accepted = read_accepted(fields)
    scope, memory = await request.app[SCOPES].of(request), request.app[DAEMON].memory
    if scope not in memory.scopes:
        raise Refused("Authorization or user is refused (not the daemon's own user): send no outcomes.", "request", 403)
    kept = memory.takes(scope)
    if kept:
        memory.accept(accepted)
    return reply({"kept": kept})


def read_accepted(fields: Fields) -> Accepted:
    """Raises RequestError for the first field that can't be used, and for a file that may hold secrets."""
    fields.only(FIELDS)
    root, path = fields.text("root", most=MOST_NAME), fields.text("path", most=MOST_NAME)
    if is_secret(path):
        raise RequestError("path names a file that may hold secrets: do not report what was accepted there.", "path")
    folder, file = PurePath(root), PurePath(path)
    if not folder.is_absolute() or ".." in file.parts or folder not in file.parents:
        raise RequestError("path must lie in root, an absolute folder.", "path")
    return Accepted(
        str(folder),
        str(file),
        fields.text("language", "", 64),
        fields.text("lead", "", MOST_TEXT),
        fields.text("text", most=MOST_TEXT),
        fields.text("following", "", MOST_TEXT),
    )


ROUTES = [web.post("/v1/codespec/outcome", report)]
