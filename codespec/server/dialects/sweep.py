"""The API of Sweep's local server for Sweep's editor extensions, with one endpoint for next edits.

Sweep's extensions use whatever server listens on local port 8081, so `codespec serve --port 8081` serves them.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from aiohttp import web

from codespec.api.limits import MAX_CHANGES, MAX_COUNT, MAX_PATH
from codespec.api.types import DoneEvent, Snippet, TextEvent
from codespec.errors import RequestError
from codespec.exclusions.secrets import is_secret
from codespec.exclusions.secrets import without_secrets as without_secret_lines
from codespec.server.daemon import DAEMON
from codespec.server.dialects.codespec import EditRequest, prepare
from codespec.server.dialects.shared import collect, without_secrets
from codespec.server.wire import Fields, dump, read_fields
from codespec.text.edit_prompt import Change, EditContext

HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@")


async def next_edit(request: web.Request) -> web.StreamResponse:
    """Reply with one line of JSON: the fields of the first edit around the cursor, and all edits in `completions`."""
    began, daemon = time.perf_counter(), request.app[DAEMON]
    daemon.ready()
    with await read_fields(request) as fields:
        offsets = Offsets(fields.text("file_contents"), utf8=fields.flag("use_bytes"))
        wanted = read_request(fields, offsets)
    async with daemon.encoding:
        (answer,) = await asyncio.to_thread(prepare, daemon, wanted)
    found, reason = [], answer.reason
    if answer.handle is not None:
        (done,) = await collect(request, [answer.handle])
        events = [item for event in (TextEvent(0, done.text), DoneEvent(0, done)) for item in answer.read(event)]
        found = [_completion(offsets, data) for name, data in events if name == "edit"]
        reason = events[-1][1]["reason"]
    spent = int((time.perf_counter() - began) * 1000)
    first = found[0] if found else _completion(offsets, {"start_row": 0, "end_row": 0, "text": ""}, confidence=0.0)
    line = dump({**first, "completions": found, "reason": reason, "elapsed_time_ms": spent}) + b"\n"
    return web.Response(body=line, content_type="application/x-ndjson")


def _completion(offsets: Offsets, edit: dict[str, Any], confidence: float = 1.0) -> dict[str, Any]:
    return {
        "autocomplete_id": secrets.token_hex(16),
        "start_index": offsets.of_row(edit["start_row"]),
        "end_index": offsets.of_row(edit["end_row"]),
        "completion": edit["text"],
        "confidence": confidence,
        "finish_reason": "stop",
    }


def read_request(fields: Fields, offsets: Offsets) -> EditRequest:
    """Read a request; ignore unknown fields. Raise RequestError for the first invalid field."""
    path = fields.text("file_path", most=MAX_PATH)
    row, column = offsets.position(fields.whole("cursor_position", 0, 0, MAX_COUNT))
    chunks = [part for name in ("file_chunks", "retrieval_chunks") for part in fields.parts(name)]
    snippets = without_secrets(
        (Snippet(part.text("file_path", "", MAX_PATH), part.text("content", "")) for part in chunks), []
    )
    context = EditContext(
        path=path,
        lines=offsets.rows,
        cursor=(row, column),
        changes=list(read_changes(fields.text("recent_changes", "")))[-MAX_CHANGES:],
        snippets=[(snippet.path, snippet.text) for snippet in snippets],
        problems=[
            (part.whole("line", 1, 1, MAX_COUNT) - 1, part.text("message", ""))
            for part in fields.parts("editor_diagnostics")
        ],
    )
    return EditRequest(context, [row], {"path": path, "document": path}, None)


def read_changes(recent: str) -> Iterator[Change]:
    """Yield the changes in unified-diff hunks after lines such as `File: a.py:`, except changes to secret files."""
    path, row, old, new = "", -1, list[str](), list[str]()
    for line in [*recent.split("\n"), "File: "]:
        head = HUNK.match(line)
        if head is None and not line.startswith("File: "):
            old += [line[1:]] if line[:1] in ("-", " ") else []
            new += [line[1:]] if line[:1] in ("+", " ") else []
            continue
        if row >= 0 and old != new and not is_secret(path):
            before, after = (without_secret_lines("".join(f"{one}\n" for one in lines)) for lines in (old, new))
            yield Change(path, row, before, after)
        old, new = [], []
        row = max(0, int(head[1]) - 1) if head else -1
        path = path if head else line.removeprefix("File: ").rstrip().removesuffix(":")


class Offsets:
    """The offsets of a text's rows, in bytes if `utf8` is true, else in UTF-16 code units, as editors count."""

    def __init__(self, text: str, *, utf8: bool) -> None:
        self.rows = text.split("\n")
        self._encoding, self._unit = ("utf-8", 1) if utf8 else ("utf-16-le", 2)
        sizes = (len(row.encode(self._encoding)) // self._unit + 1 for row in self.rows)
        self._starts = [0, *accumulate(sizes)]
        self._starts[-1] -= 1  # the last row has no line break

    def of_row(self, row: int) -> int:
        """Return the offset at which a row begins. The row after the last one begins at the end of the text."""
        return self._starts[row]

    def position(self, offset: int) -> tuple[int, int]:
        """Return the row and the column of an offset. Raise RequestError for an offset after the end of the text."""
        if offset > self._starts[-1]:
            sentence = f"cursor_position must be at most {self._starts[-1]}, the length of file_contents."
            raise RequestError(sentence, "cursor_position")
        row = bisect_right(self._starts, offset, hi=len(self.rows)) - 1
        before = self.rows[row].encode(self._encoding)[: (offset - self._starts[row]) * self._unit]
        return row, len(before.decode(self._encoding, "ignore"))


ROUTES = [web.post("/backend/next_edit_autocomplete", next_edit)]
