"""Extend the JSON-RPC protocol of pygls: validate the parameters of client messages, and apply them in order.

Old or careless clients omit required fields, or send null for optional fields, numbers that are too large, ranges as
pairs, or an empty list for an empty object (Lua, PHP) and vice versa. An invalid message is either normalized or
refused with an error that names the field. Fields that the server does not read are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams
from pygls.protocol import JsonRPCNotification, JsonRPCRequestMessage, LanguageServerProtocol

from codespec_lsp.completer import ContentModified, PendingRequest
from codespec_lsp.edit_model import INLINE_EDIT, NEXT_EDIT

if TYPE_CHECKING:
    from codespec_lsp.server import Server

MAX_NUMBER = 2**31 - 1  # the protocol's maximum for a line or a column
ENCODINGS = ("utf-8", "utf-16", "utf-32")
INVOKED, AUTOMATIC = 1, 2

Reader = Callable[[Any], Any]  # validates and normalizes a JSON value; None stands for an absent value


class Misread(ValueError):
    """Raised for a missing or invalid field. `must` is the requirement, and `field` the path of the field or ""."""

    def __init__(self, must: str, field: str = "") -> None:
        super().__init__(f"{field} {must}".strip())
        self.must = must
        self.field = field


def record(**readers: Reader) -> Reader:
    """Return a reader for an object with the given fields. The reader omits absent fields from the result."""

    def read(value: Any) -> dict[str, Any]:
        if value not in (None, []) and not isinstance(value, Mapping):
            raise Misread("must be an object")
        fields = {name: _read_field(name, reader, (value or {}).get(name)) for name, reader in readers.items()}
        return {name: each for name, each in fields.items() if each is not None}

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
    """Return a reader for a list whose items `reader` reads."""

    def read(value: Any) -> list[Any]:
        if not isinstance(value, list) and value != {}:
            raise Misread("must be a list")
        return [_read_field(str(index), reader, each) for index, each in enumerate(value)]

    return read


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise Misread("must be a string")
    return value


def identifier(value: Any) -> int | str:
    """Read a request id or a progress token."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise Misread("must be a string or a whole number")
    return value


def number(value: Any) -> int:
    """Read the number of a line or column, which must be at least 0 and is capped at the protocol's maximum."""
    if not _is_whole(value) or value < 0:
        raise Misread("must be a whole number that is not negative")
    return int(min(value, MAX_NUMBER))


def span(value: Any) -> dict[str, Any]:
    """Read a range. Some clients send a range in VS Code's own JSON form, a list of two positions."""
    pair = {"start": value[0], "end": value[1]} if isinstance(value, list) and len(value) == 2 else value
    return dict(record(start=POSITION, end=POSITION)(pair))


def anything(value: Any) -> Any:
    return value


def _version(value: Any) -> int | None:
    """Read a document's version, which the server only returns to the client. An invalid version is read as None."""
    return int(value) if _is_whole(value) else None


def _is_whole(value: Any) -> bool:
    """Return whether a value is a whole number, such as 3 or 3.0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0


def _process(value: Any) -> int | None:
    """Read the id of the editor's process. Return None if the id is invalid."""
    return int(value) if _is_whole(value) and 0 < value <= MAX_NUMBER else None


def _name(value: Any) -> str:
    """Read a name or a language id. An invalid value is read as ""."""
    return value if isinstance(value, str) else ""


def _change(value: Any) -> dict[str, Any]:
    """Read a change of a document. Without a range, a change replaces the whole text."""
    change = record(range=maybe(span), text=text)(value)
    if "range" not in change and value.get("rangeLength") is not None:
        raise Misread("is required with rangeLength", "range")  # otherwise a piece would replace the whole text
    return dict(change)


def _context(value: Any) -> dict[str, Any]:
    """Read an inline completion's context. Kind 0 means invoked, as in an LSP draft; unknown kinds mean automatic."""
    selected = record(range=span, text=text)
    context = record(
        triggerKind=maybe(number),
        selectedCompletionInfo=lambda it: selected(it) if it else None,
        whole=lambda whole: whole is True,
    )(value)
    kind = context.get("triggerKind", AUTOMATIC)
    return {**context, "triggerKind": INVOKED if kind in (0, INVOKED) else AUTOMATIC}


def _capabilities(value: Any) -> dict[str, Any]:
    """Read the capabilities that the server uses. An invalid capability counts as absent."""
    general, document = _part(value, "general") or {}, _part(value, "textDocument") or {}
    inline, named = _part(document, "inlineCompletion"), general.get("positionEncodings")
    encodings = [each for each in named if each in ENCODINGS] if isinstance(named, list) else []
    capabilities: dict[str, Any] = {"textDocument": {}}
    if encodings:
        capabilities["general"] = {"positionEncodings": encodings}
    if inline is not None:
        is_dynamic = inline.get("dynamicRegistration") is True
        capabilities["textDocument"]["inlineCompletion"] = {"dynamicRegistration": is_dynamic}
    if _part(value, "notebookDocument") is not None:
        capabilities["notebookDocument"] = {"synchronization": {}}
    capabilities["workspace"] = {"configuration": (_part(value, "workspace") or {}).get("configuration") is True}
    ours = _part(_part(value, "experimental"), "codespec") or {}
    capabilities["experimental"] = {"codespec": {"more": ours.get("more") is True}}
    return capabilities


def _part(value: Any, name: str) -> Mapping[str, Any] | None:
    part = value.get(name) if isinstance(value, Mapping) else None
    return part if isinstance(part, Mapping) else None


def _initialize(value: Any) -> dict[str, Any]:
    """Read the parameters of initialize. The root folder may be a path instead of a URI, as in early LSP versions."""
    read = record(
        processId=_process,
        capabilities=_capabilities,
        clientInfo=maybe(record(name=_name)),
        rootUri=maybe(text),
        rootPath=maybe(text),
        workspaceFolders=maybe(items(FOLDER)),
        initializationOptions=anything,
    )(value)
    path = Path(read.pop("rootPath", ""))
    if path.is_absolute() and not read.get("rootUri"):
        with suppress(UnicodeError):  # a path with a lone surrogate
            read["rootUri"] = path.as_uri()
    return dict(read)


POSITION = record(line=number, character=number)
FOLDER = record(uri=text, name=_name)
DOCUMENT = record(uri=text)

OPENED = record(uri=text, languageId=_name, version=_version, text=text)
IDENTIFIED = record(uri=text, version=_version)
CELLS = items(record(document=text, kind=anything))
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

EDIT_REQUEST = record(
    textDocument=IDENTIFIED,
    position=POSITION,
    trigger=maybe(text),
    diagnostics=maybe(items(record(range=span, message=text))),
)

READERS: Mapping[str, Reader] = {
    types.INITIALIZE: _initialize,
    types.INITIALIZED: lambda value: {},
    types.SHUTDOWN: lambda value: None,
    types.SET_TRACE: lambda value: {"value": "off"},  # pygls stores the value, but nothing is traced
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
    NEXT_EDIT: EDIT_REQUEST,
    INLINE_EDIT: EDIT_REQUEST,
    types.WORKSPACE_DID_CHANGE_CONFIGURATION: lambda value: {"settings": None, **record(settings=anything)(value)},
    types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS: record(
        event=record(added=lambda value: items(FOLDER)(value or []), removed=lambda value: items(FOLDER)(value or []))
    ),
    types.WORKSPACE_EXECUTE_COMMAND: record(command=text, arguments=maybe(items(anything))),
    types.CANCEL_REQUEST: record(id=identifier),
    types.WINDOW_WORK_DONE_PROGRESS_CANCEL: record(token=identifier),
}


COMPLETIONS = (types.TEXT_DOCUMENT_INLINE_COMPLETION, types.TEXT_DOCUMENT_COMPLETION)
EDITS = (NEXT_EDIT, INLINE_EDIT)
OPENS = (types.TEXT_DOCUMENT_DID_OPEN, types.NOTEBOOK_DOCUMENT_DID_OPEN)
CHANGES = (types.TEXT_DOCUMENT_DID_CHANGE, types.NOTEBOOK_DOCUMENT_DID_CHANGE)
DOCUMENTS = (*OPENS, *CHANGES, types.TEXT_DOCUMENT_DID_CLOSE, types.NOTEBOOK_DOCUMENT_DID_CLOSE)


class LspProtocol(LanguageServerProtocol):
    """The protocol of one connection to a `Server`."""

    _server: Server

    def __init__(self, server: Any, converter: Any) -> None:
        super().__init__(server, converter)
        self._open: dict[int | str, PendingRequest] = {}  # by message id

    @property
    def shut_down(self) -> bool:
        """Whether the client requested a shutdown."""
        return bool(self._shutdown)

    def structure_message(self, data: dict[str, Any]) -> Any:
        """Convert a message to an lsprotocol object. Raises JsonRpcException.

        Parameters are left as plain JSON in messages about documents, whose versions may exceed lsprotocol's limit, in
        completion requests, which may contain a field of codespec's own, and in messages without a reader.
        """
        method, params = data.get("method"), data.get("params")
        if method is None:
            return self._convert(data)
        reader = READERS.get(method)
        if reader is None:
            plain = params if isinstance(params, Mapping) else {}
            if "id" in data:
                return JsonRPCRequestMessage(data["id"], method, "2.0", plain)
            return JsonRPCNotification(method, "2.0", plain)
        try:
            read = reader(params)
        except Misread as error:
            raise JsonRpcInvalidParams(f"{method} can't be read: {error}.") from error
        if method in DOCUMENTS:
            return JsonRPCNotification(method, "2.0", read)
        if method == types.INITIALIZE and self._server.copilot:
            read["capabilities"].pop("general", None)  # the position encodings
        if method in (*COMPLETIONS, *EDITS) and "id" in data:
            return JsonRPCRequestMessage(data["id"], method, "2.0", read)
        return self._convert({**data, "params": read})

    def _convert(self, data: dict[str, Any]) -> Any:
        try:
            return super().structure_message(data)
        except JsonRpcException as error:  # without a sentence for the client
            name = data.get("method", "A response")
            raise JsonRpcInvalidParams(f"{name} can't be read: its fields are not those of the protocol.") from error

    def left_out(self, data: Mapping[str, Any]) -> None:
        """Mark a document as lost if a change could not be applied, or all documents if the change has no valid URI."""
        method, params = data.get("method"), data.get("params")
        named = params if isinstance(params, Mapping) else {}
        document = named.get("textDocument", named.get("notebookDocument"))
        uri = document.get("uri") if isinstance(document, Mapping) else None
        if isinstance(uri, str) and method in (*OPENS, *CHANGES):
            self._server.session.lose(uri)
        elif method in CHANGES:
            self._server.session.lose(None)

    def _handle_notification(self, method_name: str, params: Any) -> None:
        """Pass changes of documents to the session: the handlers of pygls would store a second copy of each text."""
        session = self._server.session
        match method_name:
            case types.TEXT_DOCUMENT_DID_OPEN:
                session.opened(params["textDocument"])
            case types.TEXT_DOCUMENT_DID_CHANGE:
                session.changed(params["textDocument"], params["contentChanges"])
            case types.TEXT_DOCUMENT_DID_CLOSE:
                session.closed(params["textDocument"]["uri"])
            case types.NOTEBOOK_DOCUMENT_DID_OPEN:
                notebook = params["notebookDocument"]
                session.notebook_opened(notebook["uri"], notebook["cells"], params["cellTextDocuments"])
            case types.NOTEBOOK_DOCUMENT_DID_CHANGE:
                session.notebook_changed(params["notebookDocument"]["uri"], params["change"].get("cells", {}))
            case types.NOTEBOOK_DOCUMENT_DID_CLOSE:
                session.notebook_closed(params["notebookDocument"]["uri"])
            case _:
                super()._handle_notification(method_name, params)

    def _handle_request(self, msg_id: int | str, method_name: str, params: Any) -> None:
        """Capture a request's document at once, because the document may change before the handler runs."""
        if method_name in COMPLETIONS:
            params = self._take(params)
            if params is not None:
                self._open[msg_id] = params
        elif method_name in EDITS:
            at, problems = params["position"], params.get("diagnostics", ())
            rows = [(each["range"]["start"]["line"], each["message"]) for each in problems]
            uri, place = params["textDocument"]["uri"], (at["line"], at["character"])
            params = self._server.session.edits.receive(uri, place, params.get("trigger", ""), rows)
        super()._handle_request(msg_id, method_name, params)

    def _run_generator(
        self, future: Future[Any] | None, *, gen: Generator[Any, Any, Any], result_future: Future[Any]
    ) -> None:
        """Ignore handlers that were cancelled at shutdown, for which pygls would raise an error that editors log."""
        if future is None or not future.cancelled():
            super()._run_generator(future, gen=gen, result_future=result_future)

    def _send_handler_result(self, future: Future[Any], *, msg_id: int | str) -> None:
        """Send a result, or ContentModified if the document has changed since the answer was computed."""
        request = self._open.pop(msg_id, None)
        if request is None or not request.stale or future.cancelled():
            super()._send_handler_result(future, msg_id=msg_id)
            return
        future.exception()  # retrieve it, otherwise asyncio logs a warning
        self._request_futures.pop(msg_id, None)
        self._send_response(msg_id, None, ContentModified().to_response_error())

    def _take(self, params: Mapping[str, Any]) -> PendingRequest | None:
        """Capture a completion request. Requests for completion lists, whose items can't grow, have no context."""
        context = params.get("context", {"whole": True})
        explicit, selected = context.get("triggerKind") == INVOKED, context.get("selectedCompletionInfo")
        if selected is not None:
            start, end = (_position(selected["range"][side]) for side in ("start", "end"))
            selected = types.SelectedCompletionInfo(types.Range(start, end), selected["text"])
        uri, here = params["textDocument"]["uri"], _position(params["position"])
        return self._server.session.receive(uri, here, explicit, selected, whole=context["whole"])


def _position(at: Mapping[str, int]) -> types.Position:
    return types.Position(at["line"], at["character"])
