"""What the tests of next edits send and read."""

from __future__ import annotations

from typing import Any

from tests.lsp.conversation import URI, Editor


def request_params(line: int, character: int, trigger: str = "typing", uri: str = URI) -> dict[str, Any]:
    """Return the parameters of codespec/nextEdit."""
    position = {"line": line, "character": character}
    return {"textDocument": {"uri": uri, "version": 1}, "position": position, "trigger": trigger}


UNCHANGED = "The model leaves these lines as they are."


async def next_edit(client: Editor, line: int, character: int, trigger: str = "typing", uri: str = URI) -> Any:
    """Request the next edit; return the edit, or the reason why there is none."""
    reply = await client.request("codespec/nextEdit", request_params(line, character, trigger, uri))
    assert "result" in reply, reply
    result = reply["result"]
    assert bool(result["edits"]) != bool(result["reason"]), "an edit or a reason"
    return result["edits"][0] if result["edits"] else result["reason"]


async def command(client: Editor, name: str, *arguments: Any) -> None:
    """Run a command of the server's."""
    reply = await client.request("workspace/executeCommand", {"command": name, "arguments": list(arguments)})
    assert "result" in reply, reply


def done(place: int, start: int, end: int, reason: str = "") -> tuple[str, dict[str, Any]]:
    """Return the event that ends a place, whose window is rows `start` to `end`."""
    unchanged = reason == UNCHANGED
    rows_of = {"place": place, "start_row": start, "end_row": end}
    return "done", {**rows_of, "unchanged": unchanged, "reason": reason, "stats": {}}


def hunk(place: int, start: int, end: int, text: str) -> tuple[str, dict[str, Any]]:
    """Return the event of a hunk."""
    return "edit", {"place": place, "start_row": start, "end_row": end, "text": text}


def rows(edit: Any) -> list[tuple[int, str]]:
    """Return the first row and the new text of each hunk."""
    return [(hunk["range"]["start"]["line"], hunk["newText"]) for hunk in edit["hunks"]]
