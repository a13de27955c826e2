"""Validate and normalize the parameters of client messages, limited to the fields that the server reads.

Old and careless clients omit required fields, send null for optional ones, numbers that are too large, or ranges as
pairs. Such a message is either normalized or refused with the field's name. Fields that are not read can't make a
message invalid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lsprotocol import types

MOST_NUMBER = 2**31 - 1  # for a line or a column; anything larger also means the end
ENCODINGS = ("utf-8", "utf-16", "utf-32")
INVOKED, AUTOMATIC = 1, 2

Reader = Callable[[Any], Any]  # converts a JSON value to the protocol's form; an absent value is None


class Misread(ValueError):
    """Raised if a field is missing or invalid. `must` is the requirement, `field` the path of the field, or ""."""

    def __init__(self, must: str, field: str = "") -> None:
        super().__init__(f"{field} {must}".strip())
        self.must = must
        self.field = field


def record(**readers: Reader) -> Reader:
    """Return a reader for an object with these fields. Fields read as None are left out."""

    def read(value: Any) -> dict[str, Any]:
        if value is not None and not isinstance(value, Mapping):
            raise Misread("must be an object")
        found = {name: _read_field(name, reader, (value or {}).get(name)) for name, reader in readers.items()}
        return {name: each for name, each in found.items() if each is not None}

    return read


def _read_field(name: str, reader: Reader, value: Any) -> Any:
    try:
        return reader(value)
    except Misread as error:
        raise Misread(error.must, f"{name}.{error.field}" if error.field else name) from None


def maybe(reader: Reader) -> Reader:
    """Return a reader for a value that may be absent or null."""
    return lambda value: None if value is None else reader(value)


def items(reader: Reader) -> Reader:
    """Return a reader for a list."""

    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Misread("must be a list")
        return [_read_field(str(index), reader, each) for index, each in enumerate(value)]

    return read


def text(value: Any) -> str:
    """Read a string."""
    if not isinstance(value, str):
        raise Misread("must be a text")
    return value


def identifier(value: Any) -> int | str:
    """Read a request id or a progress token."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise Misread("must be a text or a whole number")
    return value


def number(value: Any) -> int:
    """Read a line or a column: at least 0, capped at the protocol's maximum."""
    if not _is_whole(value) or value < 0:
        raise Misread("must be a whole number that is not negative")
    return int(min(value, MOST_NUMBER))


def span(value: Any) -> dict[str, Any]:
    """Read a range. Some clients send VS Code's own JSON form, a list of two positions."""
    pair = {"start": value[0], "end": value[1]} if isinstance(value, list) and len(value) == 2 else value
    return dict(record(start=POSITION, end=POSITION)(pair))


def anything(value: Any) -> Any:
    """Return the value unchanged."""
    return value


def _version(value: Any) -> int | None:
    """Read a document's version, which is only passed on; None if it is invalid."""
    return int(value) if _is_whole(value) else None


def _is_whole(value: Any) -> bool:
    """Return whether the value is a whole number, written as 3 or as 3.0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0


def _language(value: Any) -> str:
    """Read a document's language id, or "" if there is none; the file name decides then."""
    return value if isinstance(value, str) else ""


def _change(value: Any) -> dict[str, Any]:
    """Read one change. Without a range it replaces the whole text."""
    change = record(range=maybe(span), text=text)(value)
    if "range" not in change and value.get("rangeLength") is not None:
        raise Misread("must be there, as rangeLength is", "range")  # otherwise a piece would replace the whole text
    return dict(change)


def _context(value: Any) -> dict[str, Any]:
    """Read the context of an inline completion. Missing means automatic; 0 meant invoked in the protocol's draft."""
    context = record(triggerKind=maybe(number), selectedCompletionInfo=maybe(record(range=span, text=text)))(value)
    kind = context.get("triggerKind", AUTOMATIC)
    return {**context, "triggerKind": INVOKED if kind in (0, INVOKED) else AUTOMATIC}


def _capabilities(value: Any) -> dict[str, Any]:
    """Read the few capabilities that the server uses. One in an unknown form counts as absent."""
    general, document = _part(value, "general") or {}, _part(value, "textDocument") or {}
    inline, named = _part(document, "inlineCompletion"), general.get("positionEncodings")
    encodings = [each for each in named if each in ENCODINGS] if isinstance(named, list) else []
    found: dict[str, Any] = {"textDocument": {}}
    if encodings:
        found["general"] = {"positionEncodings": encodings}
    if inline is not None:
        found["textDocument"]["inlineCompletion"] = {"dynamicRegistration": inline.get("dynamicRegistration") is True}
    if _part(value, "notebookDocument") is not None:
        found["notebookDocument"] = {"synchronization": {}}
    found["workspace"] = {"configuration": (_part(value, "workspace") or {}).get("configuration") is True}
    return found


def _part(value: Any, name: str) -> Mapping[str, Any] | None:
    part = value.get(name) if isinstance(value, Mapping) else None
    return part if isinstance(part, Mapping) else None


def _initialize(value: Any) -> dict[str, Any]:
    """Read the initialize parameters. The root may be a path, as in early versions of the protocol."""
    read = record(
        capabilities=_capabilities,
        clientInfo=maybe(record(name=lambda name: name if isinstance(name, str) else "")),
        rootUri=maybe(text),
        rootPath=maybe(text),
        workspaceFolders=maybe(items(FOLDER)),
        initializationOptions=anything,
    )(value)
    path = Path(read.pop("rootPath", ""))
    if path.is_absolute() and not read.get("rootUri"):
        read["rootUri"] = path.as_uri()
    return dict(read)


POSITION = record(line=number, character=number)
FOLDER = record(uri=text, name=lambda name: name if isinstance(name, str) else "")
DOCUMENT = record(uri=text)

OPENED = record(uri=text, languageId=_language, version=_version, text=text)
IDENTIFIED = record(uri=text, version=_version)
CELLS = items(record(document=text))
CHANGED_CELLS = record(
    structure=maybe(
        record(
            array=record(start=number, deleteCount=number, cells=maybe(CELLS)),
            didOpen=maybe(items(OPENED)),
            didClose=maybe(items(DOCUMENT)),
        )
    ),
    textContent=maybe(items(record(document=IDENTIFIED, changes=items(_change)))),
)

READERS: Mapping[str, Reader] = {
    types.INITIALIZE: _initialize,
    types.INITIALIZED: lambda value: {},
    types.SHUTDOWN: lambda value: None,
    types.SET_TRACE: lambda value: {"value": "off"},  # pygls stores it, but nothing is traced
    types.TEXT_DOCUMENT_DID_OPEN: record(textDocument=OPENED),
    types.TEXT_DOCUMENT_DID_CHANGE: record(textDocument=IDENTIFIED, contentChanges=items(_change)),
    types.TEXT_DOCUMENT_DID_CLOSE: record(textDocument=DOCUMENT),
    types.NOTEBOOK_DOCUMENT_DID_OPEN: record(
        notebookDocument=record(uri=text, cells=CELLS), cellTextDocuments=items(OPENED)
    ),
    types.NOTEBOOK_DOCUMENT_DID_CHANGE: record(notebookDocument=DOCUMENT, change=record(cells=maybe(CHANGED_CELLS))),
    types.NOTEBOOK_DOCUMENT_DID_CLOSE: record(notebookDocument=DOCUMENT),
    types.TEXT_DOCUMENT_INLINE_COMPLETION: record(textDocument=DOCUMENT, position=POSITION, context=_context),
    types.TEXT_DOCUMENT_COMPLETION: record(textDocument=DOCUMENT, position=POSITION),
    types.WORKSPACE_DID_CHANGE_CONFIGURATION: lambda value: {"settings": None, **record(settings=anything)(value)},
    types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS: record(
        event=record(added=lambda value: items(FOLDER)(value or []), removed=lambda value: items(FOLDER)(value or []))
    ),
    types.WORKSPACE_EXECUTE_COMMAND: record(command=text, arguments=maybe(items(anything))),
    types.CANCEL_REQUEST: record(id=identifier),
    types.WINDOW_WORK_DONE_PROGRESS_CANCEL: record(token=identifier),
}
