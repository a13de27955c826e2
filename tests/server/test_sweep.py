"""Sweep's local protocol: one line of JSON with offsets in the client's unit, and its history as changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codespec.server.dialects.sweep import Offsets, read_changes
from codespec.text.edit_prompt import Change
from tests.server.daemons import serving
from tests.server.fakes import FakeEngine

PATH = "/backend/next_edit_autocomplete"
TEXT = "é = 1\n😀 = 2\nthree = 3\nfour = 4\nfive = 5\n"
CHANGES = (
    "File: a.py:\n@@ -1,2 +1,2 @@\n-e = 1\n+é = 1\n 😀 = 2\n"
    "File: b/c.py:\n@@ -5 +7,0 @@\n-gone\n@@ -9,0 +9,1 @@\n+new\n"
)


def body(**more: Any) -> dict[str, Any]:
    """Return a request as the extension sends it, with fields that are not read."""
    return {
        "debug_info": "VSCode",
        "repo_name": "r",
        "file_path": "a.py",
        "file_contents": TEXT,
        "original_file_contents": TEXT,
        "cursor_position": len("é = 1\n".encode()),
        "recent_changes": CHANGES,
        "changes_above_cursor": True,
        "multiple_suggestions": True,
        "file_chunks": [{"file_path": "d.py", "start_line": 0, "end_line": 1, "content": "d = 1", "timestamp": 5}],
        "retrieval_chunks": [],
        "recent_user_actions": [{"action_type": "INSERT_CHAR", "line_number": 1, "offset": 3, "file_path": "a.py"}],
        "editor_diagnostics": [{"line": 3, "start_offset": 1, "end_offset": 2, "severity": "ERROR", "message": "bad"}],
        "use_bytes": True,
        **more,
    }


@pytest.mark.parametrize("utf8", [True, False])
def test_edits_have_offsets_in_the_client_s_unit(utf8: bool) -> None:
    start = len("é = 1\n😀 = 2\n".encode() if utf8 else "é = 1\n😀 = 2\n".encode("utf-16-le")) // (1 if utf8 else 2)
    end = start + len("three = 3\n")
    cursor = start - len("= 2\n")
    engine = FakeEngine(answer=lambda request: request.prediction.replace("three = 3", "three = 4"), ends="stop")
    with serving(engine, context=4096, edit_format="sweep-server") as served:
        reply = served.post(PATH, body(use_bytes=utf8, cursor_position=cursor))
    assert reply.status == 200 and reply.body.count(b"\n") == 1
    found = json.loads(reply.body)
    assert (found["start_index"], found["end_index"], found["completion"]) == (start, end, "three = 4\n")
    assert [one["completion"] for one in found["completions"]] == ["three = 4\n"] and not found["reason"]
    (request,) = engine.submitted
    assert "<|cursor|>= 2" in request.prefix and "d = 1" in request.prefix and "gone" in request.prefix


def test_no_edit_is_an_empty_completion_with_its_reason() -> None:
    with serving(FakeEngine(answer=lambda r: r.prediction, ends="stop"), context=4096) as served:
        found = served.post(PATH, body()).json
    assert (found["completion"], found["completions"], found["start_index"]) == ("", [], 0)
    assert "set edit_format" in found["reason"]


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (body(cursor_position=10_000), "cursor_position"),
        (body(cursor_position=-1), "cursor_position"),
        (body(file_contents=None), "file_contents"),
        (body(file_path=5), "file_path"),
        (body(recent_changes=[]), "recent_changes"),
        (body(file_chunks="x"), "file_chunks"),
        (body(editor_diagnostics=[{"line": 0}]), "editor_diagnostics[0].line"),
    ],
)
def test_a_bad_field_is_named(sent: dict[str, Any], field: str) -> None:
    with serving(FakeEngine(), context=4096, edit_format="sweep-server") as served:
        reply = served.post(PATH, sent)
        assert (reply.status, reply.json["error"]["field"]) == (400, field)


def test_the_history_is_read_hunk_by_hunk() -> None:
    assert list(read_changes(CHANGES)) == [
        Change("a.py", 0, "e = 1\n😀 = 2\n", "é = 1\n😀 = 2\n"),
        Change("b/c.py", 6, "gone\n", ""),
        Change("b/c.py", 8, "", "new\n"),
    ]
    assert not list(read_changes("")) and not list(read_changes("-x\n+y\n"))
    assert not list(read_changes("File: .env:\n@@ -1 +1 @@\n-a\n+b\n"))


def test_every_offset_has_its_position() -> None:
    for utf8, encoding, unit in ((True, "utf-8", 1), (False, "utf-16-le", 2)):
        offsets = Offsets(TEXT, utf8=utf8)
        for place in range(len(TEXT) + 1):
            row, column = TEXT.count("\n", 0, place), place - (TEXT.rfind("\n", 0, place) + 1)
            assert offsets.position(len(TEXT[:place].encode(encoding)) // unit) == (row, column)
        assert offsets.of_row(len(offsets.rows)) == len(TEXT.encode(encoding)) // unit
