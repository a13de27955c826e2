"""The messages of next edits: codespec's own, and those of Copilot's clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from codespec_lsp.buffer import Buffer, TextPosition, common_ends, width
from codespec_lsp.edit_model import EditRequest
from codespec_lsp.hunks import Hunk
from codespec_lsp.status import VERSION

if TYPE_CHECKING:
    from codespec_lsp.server import Server

NEXT_EDIT, INLINE_EDIT = "codespec/nextEdit", "textDocument/copilotInlineEdit"
ACCEPT_EDIT, DISMISS_EDIT = "codespec.acceptEdit", "codespec.dismissEdit"
SIGN_IN = ("checkStatus", "signIn", "signInInitiate", "signInConfirm", "signInWithGithubToken")
ACKNOWLEDGED = ("signOut", "setEditorInfo", "notifyShown", "notifyAccepted", "notifyRejected")


def add_edit_features(server: Server) -> None:
    """Register the features of next edits."""
    server.feature(NEXT_EDIT)(_next_edit)
    server.feature(INLINE_EDIT)(_inline_edit)
    server.feature("codespec/didShowEdit")(_shown)
    server.feature("textDocument/didShowInlineEdit")(_shown_inline)
    server.command(ACCEPT_EDIT)(lambda *arguments: _report(server.session.edits.accepted, arguments))
    server.command(DISMISS_EDIT)(lambda *arguments: _report(server.session.edits.dismissed, arguments))


def add_copilot_features(server: Server) -> None:
    """Register what clients of Copilot's server ask for besides: there is no account to sign in to."""
    for method in SIGN_IN:
        server.feature(method)(lambda _params: {"status": "OK", "user": "codespec"})
    for method in ACKNOWLEDGED:
        server.feature(method)(lambda _params: "OK")
    server.feature("getVersion")(lambda _params: {"version": VERSION})


async def _next_edit(ls: Server, request: EditRequest | None) -> dict[str, Any]:
    edit = await ls.session.edits.answer(request)
    if isinstance(edit, str) or request is None:
        return {"edits": [], "reason": edit}
    shown = {
        "id": edit.id,
        "textDocument": {"uri": request.document.spelled, "version": edit.version},
        "source": edit.source,
        "hunks": [_whole_lines(hunk, request.document.buffer, vim=ls.session.vim) for hunk in edit.hunks],
    }
    return {"edits": [shown], "reason": ""}


async def _inline_edit(ls: Server, request: EditRequest | None) -> dict[str, Any]:
    """Return the first hunk alone: of several, clients apply either all or the first."""
    edit = await ls.session.edits.answer(request)
    if isinstance(edit, str) or request is None:
        return {"edits": []}
    buffer = request.document.buffer
    shown = {
        **_least(_whole_lines(edit.hunks[0], buffer, vim=ls.session.vim), buffer),
        "textDocument": {"uri": request.document.spelled, "version": edit.version},
        "command": {"title": "codespec", "command": ACCEPT_EDIT, "arguments": [edit.id, 0]},
    }
    return {"edits": [shown]}


def _shown(ls: Server, params: Mapping[str, Any]) -> None:
    ls.session.edits.shown(str(params.get("id", "")))


def _shown_inline(ls: Server, params: Mapping[str, Any]) -> None:
    match params:
        case {"item": {"command": {"arguments": [str(name), *_]}}}:
            ls.session.edits.shown(name)


def _report(report: Callable[[str], None], arguments: Sequence[Any]) -> None:
    """Pass an edit's name, the first argument of a command, to `report`."""
    if arguments and isinstance(arguments[0], str):
        report(arguments[0])


def _whole_lines(hunk: Hunk, buffer: Buffer, *, vim: bool) -> dict[str, Any]:
    """Return a hunk as JSON, with a range of whole lines in the client's units.

    After the last line, the range begins at the end of the line before.
    """
    newline = "\n" if vim else buffer.newline
    old, new = hunk.old, hunk.new.replace("\r\n", "\n").replace("\n", newline)
    start, end = (hunk.start_row, 0), (hunk.end_row, 0)
    last = len(buffer.lines) - 1
    if hunk.end_row > last:
        end = (last, width(buffer.lines[last], buffer.encoding))
        if hunk.start_row > last:
            start, old, new = end, newline + old, newline + new
        if buffer.lines[last]:
            new = new.removesuffix(newline)
    return {"range": {"start": _position(*start), "end": _position(*end)}, "newText": new, "oldText": old}


def _least(shown: Mapping[str, Any], buffer: Buffer) -> dict[str, Any]:
    """Return a hunk without the words that its first and last lines keep, except for lines that are inserted whole."""
    old, new, row = shown["oldText"], shown["newText"], shown["range"]["start"]["line"]
    if not old or not new:
        return {"range": shown["range"], "text": new}
    same, tail = common_ends(old, new)
    same = min(same, len(old.splitlines()[0]))
    while same and _is_word(old[same - 1]):
        same -= 1
    while tail and _is_word(old[len(old) - tail]):
        tail -= 1
    kept = old[: len(old) - tail]
    end = TextPosition(row + kept.count("\n"), len(kept) - (kept.rfind("\n") + 1))
    first = _position(row, buffer.character(TextPosition(row, same)))
    return {
        "range": {"start": first, "end": _position(end.row, buffer.character(end))},
        "text": new[same : len(new) - tail],
    }


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _position(line: int, character: int) -> dict[str, int]:
    return {"line": line, "character": character}
