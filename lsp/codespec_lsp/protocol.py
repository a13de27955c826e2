"""JSON-RPC beyond what pygls does: documents change in the order of the messages, a completion request is taken with
its document as it is when it arrives, and Copilot's and our own messages are plain JSON.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams
from pygls.protocol import JsonRPCNotification, JsonRPCRequestMessage, LanguageServerProtocol, lsp_method

from codespec_lsp.completer import CompletionRequest
from codespec_lsp.params import READERS, Misread

if TYPE_CHECKING:
    from codespec_lsp.server import Server

COMPLETIONS = (types.TEXT_DOCUMENT_INLINE_COMPLETION, types.TEXT_DOCUMENT_COMPLETION)
OPENS = (types.TEXT_DOCUMENT_DID_OPEN, types.NOTEBOOK_DOCUMENT_DID_OPEN)
CHANGES = (types.TEXT_DOCUMENT_DID_CHANGE, types.NOTEBOOK_DOCUMENT_DID_CHANGE)
DOCUMENTS = (*OPENS, *CHANGES, types.TEXT_DOCUMENT_DID_CLOSE, types.NOTEBOOK_DOCUMENT_DID_CLOSE)
CONTENT_MODIFIED = -32801


class Protocol(LanguageServerProtocol):
    """For one connection; its server is ours."""

    _server: Server

    def __init__(self, server: Any, converter: Any) -> None:
        super().__init__(server, converter)
        self._open: dict[int | str, CompletionRequest] = {}  # by their ids

    @property
    def shut_down(self) -> bool:
        """Whether the client requested a shutdown."""
        return bool(self._shutdown)

    def structure_message(self, data: dict[str, Any]) -> Any:
        """A message as lsprotocol's object, or with parameters of plain JSON: those of documents, whose versions may be
        larger than lsprotocol lets them, and those of messages that nobody here reads. Raises JsonRpcException."""
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
        """A notification could not be followed. After a change of a document its text is not known, and if it is not
        said which document changed, that of none."""
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
        """A document was opened."""
        item = params["textDocument"]
        self._server.session.opened(item["uri"], item["languageId"], item.get("version"), item["text"])

    @lsp_method(types.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(self, params: Mapping[str, Any]) -> None:  # type: ignore[override]  # plain JSON
        """A document was edited."""
        document = params["textDocument"]
        self._server.session.changed(document["uri"], document.get("version"), params["contentChanges"])

    @lsp_method(types.TEXT_DOCUMENT_DID_CLOSE)
    def lsp_text_document__did_close(self, params: Mapping[str, Any]) -> None:  # type: ignore[override]  # plain JSON
        """A document was closed."""
        self._server.session.closed(params["textDocument"]["uri"])

    @lsp_method(types.NOTEBOOK_DOCUMENT_DID_OPEN)
    def lsp_notebook_document__did_open(self, params: Mapping[str, Any]) -> None:  # type: ignore[override]  # plain JSON
        """A notebook was opened."""
        notebook = params["notebookDocument"]
        cells = [cell["document"] for cell in notebook["cells"]]
        self._server.session.notebook_opened(notebook["uri"], cells, params["cellTextDocuments"])

    @lsp_method(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def lsp_notebook_document__did_change(self, params: Mapping[str, Any]) -> None:  # type: ignore[override]  # plain JSON
        """A notebook was edited."""
        self._server.session.notebook_changed(params["notebookDocument"]["uri"], params["change"].get("cells", {}))

    @lsp_method(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def lsp_notebook_document__did_close(self, params: Mapping[str, Any]) -> None:  # type: ignore[override]  # plain JSON
        """A notebook was closed."""
        self._server.session.notebook_closed(params["notebookDocument"]["uri"])

    def _handle_request(self, msg_id: int | str, method_name: str, params: Any) -> None:
        """A completion request is taken at once: its handler runs later, when the document may have changed."""
        if method_name in COMPLETIONS:
            params = self._take(params)
            if params is not None:
                self._open[msg_id] = params
        super()._handle_request(msg_id, method_name, params)

    def _run_generator(
        self, future: Future[Any] | None, *, gen: Generator[Any, Any, Any], result_future: Future[Any]
    ) -> None:
        """A handler of ours is cancelled only when the server ends, and then nobody waits for its result. pygls would
        raise that, and the editor would log it."""
        if future is None or not future.cancelled():
            super()._run_generator(future, gen=gen, result_future=result_future)

    def _send_handler_result(self, future: Future[Any], *, msg_id: int | str) -> None:
        """Checks once more when it is sent: the document may have changed since the answer."""
        request = self._open.pop(msg_id, None)
        if request is None or not request.stale or future.cancelled():
            super()._send_handler_result(future, msg_id=msg_id)
            return
        future.exception()  # retrieved, or asyncio logs that it never was
        self._request_futures.pop(msg_id, None)
        self._send_response(msg_id, None, modified().to_response_error())

    def _take(self, params: types.InlineCompletionParams | types.CompletionParams) -> CompletionRequest | None:
        session, uri = self._server.session, params.text_document.uri
        if isinstance(params, types.InlineCompletionParams):
            explicit = params.context.trigger_kind is types.InlineCompletionTriggerKind.Invoked
            return session.receive(uri, params.position, explicit, params.context.selected_completion_info)
        return session.receive(uri, params.position, explicit=False)


def modified() -> JsonRpcException:
    """The answer to a request whose document moved on."""
    return JsonRpcException("The document changed while this was completed.", CONTENT_MODIFIED)
