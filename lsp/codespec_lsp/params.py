"""The parameters of a client's messages: exactly the fields that we read, in the protocol's present form.

Old and careless clients leave out what is required, send null for what is optional, numbers that are too large, and
ranges as pairs. Such a message is either understood or refused, with the field's name; what we do not read can spoil
none. Knows shapes only: what a message means is its handler's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lsprotocol import types

MOST_NUMBER = 2**31 - 1  # of a line or a column; a larger one means the end, too
ENCODINGS = ("utf-8", "utf-16", "utf-32")
INVOKED, AUTOMATIC = 1, 2

Reader = Callable[[Any], Any]  # from a JSON value to the same in the protocol's form; None is also what is absent


class Misread(ValueError):
    """A field is missing, or is none that the protocol knows; the text is its name and what it must be."""


def record(**readers: Reader) -> Reader:
    """An object with these fields; one that is read as None is left out."""

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
        inner = str(error)
        raise Misread(f"{name} {inner}" if inner.startswith("must") else f"{name}.{inner}") from None


def maybe(reader: Reader) -> Reader:
    """What may be absent or null."""
    return lambda value: None if value is None else reader(value)


def items(reader: Reader) -> Reader:
    """A list."""

    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Misread("must be a list")
        return [_read_field(str(index), reader, each) for index, each in enumerate(value)]

    return read


def text(value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise Misread("must be a text")
    return value


def identifier(value: Any) -> int | str:
    """A name of a request, or of its progress."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise Misread("must be a text or a whole number")
    return value


def number(value: Any) -> int:
    """A line or a column: never less than 0, and no larger than the protocol has it."""
    if not _is_whole(value) or value < 0:
        raise Misread("must be a whole number that is not negative")
    return int(min(value, MOST_NUMBER))


def span(value: Any) -> dict[str, Any]:
    """A range. VS Code's own, as JSON, is a list of its two positions, and so have some clients sent it."""
    pair = {"start": value[0], "end": value[1]} if isinstance(value, list) and len(value) == 2 else value
    return dict(record(start=POSITION, end=POSITION)(pair))


def anything(value: Any) -> Any:
    """Whatever it is."""
    return value


def _version(value: Any) -> int | None:
    """A document's version, which we only repeat: None for what is none."""
    return int(value) if _is_whole(value) else None


def _is_whole(value: Any) -> bool:
    """Whether it is a whole number, be it written as 3 or as 3.0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0


def _language(value: Any) -> str:
    """A document's language; "" where the client names none, and its name decides."""
    return value if isinstance(value, str) else ""


def _change(value: Any) -> dict[str, Any]:
    """One change: the whole text where it has no range."""
    change = record(range=maybe(span), text=text)(value)
    if "range" not in change and value.get("rangeLength") is not None:
        raise Misread("range must be there, as rangeLength is")  # else a piece would be taken for the whole text
    return dict(change)


def _context(value: Any) -> dict[str, Any]:
    """An inline completion's context. Clients without one do not say that the user asked; the draft had 0 for that."""
    context = record(triggerKind=maybe(number), selectedCompletionInfo=maybe(record(range=span, text=text)))(value)
    kind = context.get("triggerKind", AUTOMATIC)
    return {**context, "triggerKind": INVOKED if kind in (0, INVOKED) else AUTOMATIC}


def _capabilities(value: Any) -> dict[str, Any]:
    """Of a hundred capabilities the few that matter here; one in a form that is not known is none."""
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
    """The root may be a path, as it was before there were roots with URIs."""
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
    types.SET_TRACE: lambda value: {"value": "off"},  # pygls keeps it; nothing is traced
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
