"""Extend the JSON-RPC protocol of pygls.

Documents change in message order, a completion request captures its document's state on arrival, and messages of
Copilot's and our own extensions are plain JSON.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams
from pygls.protocol import JsonRPCNotification, JsonRPCRequestMessage, LanguageServerProtocol, lsp_method

from codespec_lsp.completer import PendingRequest
from codespec_lsp.params import READERS, Misread

if TYPE_CHECKING:
    from codespec_lsp.server import Server

COMPLETIONS = (types.TEXT_DOCUMENT_INLINE_COMPLETION, types.TEXT_DOCUMENT_COMPLETION)
OPENS = (types.TEXT_DOCUMENT_DID_OPEN, types.NOTEBOOK_DOCUMENT_DID_OPEN)
CHANGES = (types.TEXT_DOCUMENT_DID_CHANGE, types.NOTEBOOK_DOCUMENT_DID_CHANGE)
DOCUMENTS = (*OPENS, *CHANGES, types.TEXT_DOCUMENT_DID_CLOSE, types.NOTEBOOK_DOCUMENT_DID_CLOSE)
CONTENT_MODIFIED = -32801


class Protocol(LanguageServerProtocol):
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
        """Convert a message to an lsprotocol object, or to one with plain JSON parameters. Raises JsonRpcException.

        Parameters stay plain JSON for document messages, whose versions may exceed lsprotocol's limit, and for messages
        without a reader in `params`.
        """
        method, params = data.get("method"), data.get("params")
        if method is None:
            return super().structure_message(data)
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
        return super().structure_message({**data, "params": read})

    def left_out(self, data: Mapping[str, Any]) -> None:
        """Handle a notification that could not be applied.

        If it opened or changed a document, that document's text is unknown from then on; without a URI, that of all
        documents.
        """
        method, params = data.get("method"), data.get("params")
        named = params if isinstance(params, Mapping) else {}
        document = named.get("textDocument", named.get("notebookDocument"))
        uri = document.get("uri") if isinstance(document, Mapping) else None
        if isinstance(uri, str) and method in (*OPENS, *CHANGES):
            self._server.session.lose(uri)
        elif method in CHANGES:
            self._server.session.lose(None)

    @lsp_method(types.TEXT_DOCUMENT_DID_OPEN)
    def lsp_text_document__did_open(self, params: Mapping[str, Any]) -> None:  # type: ignore[override]  # plain JSON
        """Handle textDocument/didOpen."""
        item = params["textDocument"]
        self._server.session.opened(item["uri"], item["languageId"], item.get("version"), item["text"])

    @lsp_method(types.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(self, params: Mapping[str, Any]) -> None:  # type: ignore[override]  # plain JSON
        """Handle textDocument/didChange."""
        document = params["textDocument"]
        self._server.session.changed(document["uri"], document.get("version"), params["contentChanges"])

    @lsp_method(types.TEXT_DOCUMENT_DID_CLOSE)
    def lsp_text_document__did_close(self, params: Mapping[str, Any]) -> None:  # type: ignore[override]  # plain JSON
        """Handle textDocument/didClose."""
        self._server.session.closed(params["textDocument"]["uri"])

    @lsp_method(types.NOTEBOOK_DOCUMENT_DID_OPEN)
    def lsp_notebook_document__did_open(self, params: Mapping[str, Any]) -> None:  # type: ignore[override]  # plain JSON
        """Handle notebookDocument/didOpen."""
        notebook = params["notebookDocument"]
        cells = [cell["document"] for cell in notebook["cells"]]
        self._server.session.notebook_opened(notebook["uri"], cells, params["cellTextDocuments"])

    @lsp_method(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def lsp_notebook_document__did_change(self, params: Mapping[str, Any]) -> None:  # type: ignore[override]  # plain JSON
        """Handle notebookDocument/didChange."""
        self._server.session.notebook_changed(params["notebookDocument"]["uri"], params["change"].get("cells", {}))

    @lsp_method(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def lsp_notebook_document__did_close(self, params: Mapping[str, Any]) -> None:  # type: ignore[override]  # plain JSON
        """Handle notebookDocument/didClose."""
        self._server.session.notebook_closed(params["notebookDocument"]["uri"])

    def _handle_request(self, msg_id: int | str, method_name: str, params: Any) -> None:
        """Capture the state for a completion request at once, because the document may change before its handler."""
        if method_name in COMPLETIONS:
            params = self._take(params)
            if params is not None:
                self._open[msg_id] = params
        super()._handle_request(msg_id, method_name, params)

    def _run_generator(
        self, future: Future[Any] | None, *, gen: Generator[Any, Any, Any], result_future: Future[Any]
    ) -> None:
        """Ignore handlers that were cancelled, which only happens at shutdown.

        pygls would raise an error for them, and the editor would log it.
        """
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
        self._send_response(msg_id, None, modified().to_response_error())

    def _take(self, params: types.InlineCompletionParams | types.CompletionParams) -> PendingRequest | None:
        session, uri = self._server.session, params.text_document.uri
        if isinstance(params, types.InlineCompletionParams):
            explicit = params.context.trigger_kind is types.InlineCompletionTriggerKind.Invoked
            return session.receive(uri, params.position, explicit, params.context.selected_completion_info)
        return session.receive(uri, params.position, explicit=False)


def modified() -> JsonRpcException:
    """Return the error for a request whose document has changed."""
    return JsonRpcException("The document changed while this was completed.", CONTENT_MODIFIED)
