"""What the tests of next edits send and read."""

from __future__ import annotations

from typing import Any

from tests.lsp.conversation import URI, Editor


def request_params(line: int, character: int, trigger: str = "typing", uri: str = URI) -> dict[str, Any]:
    """Return the parameters of codespec/nextEdit."""
    position = {"line": line, "character": character}
    return {"textDocument": {"uri": uri, "version": 1}, "position": position, "trigger": trigger}


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


def rows(edit: Any) -> list[tuple[int, str]]:
    """Return the first row and the new text of each hunk."""
    return [(hunk["range"]["start"]["line"], hunk["newText"]) for hunk in edit["hunks"]]
