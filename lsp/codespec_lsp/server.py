"""The language server for one client: its features, settings and notifications."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from typing import Any, cast

from lsprotocol import types
from pygls.capabilities import ServerCapabilitiesBuilder
from pygls.exceptions import FeatureRequestError
from pygls.lsp.server import LanguageServer
from pygls.protocol import default_converter

from codespec.errors import DaemonError
from codespec_lsp.buffer import Encoding
from codespec_lsp.completer import PendingRequest
from codespec_lsp.completions import ACCEPT, completion_list, fitting, inline_item
from codespec_lsp.daemon import Daemon, Daemons
from codespec_lsp.documents import CELL, NAMES_FILES, Document, now
from codespec_lsp.edit_model import INLINE_EDIT, NEXT_EDIT, EditRequest
from codespec_lsp.line_edits import as_whole_lines, without_kept_words
from codespec_lsp.protocol import LspProtocol
from codespec_lsp.session import Session
from codespec_lsp.settings import EditorSettings, read_settings
from codespec_lsp.status import VERSION, StatusLine, daemon_note, explain, last_completion, read_model_offer

HEALTH_INTERVAL_S = 60.0  # seconds between health checks of a daemon that is ready and in use
SELECTOR = [types.TextDocumentFilterScheme(scheme=scheme) for scheme in (*NAMES_FILES, CELL)]
NOTEBOOKS = types.NotebookDocumentSyncOptions([types.NotebookDocumentFilterWithNotebook(notebook="*")])
VIMS = ("Neovim", "Vim", "vim-lsp")  # clients that count and display a \r as a character
ACCEPT_EDIT, DISMISS_EDIT = "codespec.acceptEdit", "codespec.dismissEdit"
SIGN_IN = ("checkStatus", "signIn", "signInInitiate", "signInConfirm", "signInWithGithubToken")
ACKNOWLEDGED = ("signOut", "setEditorInfo", "notifyShown", "notifyAccepted", "notifyRejected")
_converter = cache(default_converter)  # shared by all connections: it compiles a function for each type of message


class Server(LanguageServer):
    """The language server for one connection. `copilot` marks a client that expects Copilot's server."""

    def __init__(self, daemons: Daemons, defaults: EditorSettings, *, copilot: bool = False) -> None:
        super().__init__(
            "codespec",
            VERSION,
            notebook_document_sync=NOTEBOOKS,
            protocol_cls=LspProtocol,
            converter_factory=_converter,
        )
        self.status = StatusLine(
            lambda status: self.protocol.notify("didChangeStatus", asdict(status)),
            lambda problem: self._show(types.MessageType.Error, f"codespec: {problem}"),
        )
        self.check_at: float | None = None  # time of the next health check; None: as soon as the daemon is ready
        self._offered = False
        warn = partial(self._log, types.MessageType.Warning)
        self.session = Session(Daemon(daemons, self._daemon_is), self.status, self._tell_more, warn)
        self.session.use(defaults)
        self._defaults = defaults  # updated with the initialization options
        self.dynamic, self.copilot = False, copilot
        add_features(self)

    def configure(self, sent: object, *, first: bool = False) -> None:
        """Apply settings from the client and report invalid ones. Settings that arrive `first` become the defaults."""
        settings, faults = read_settings(sent, self._defaults, self.session.settings)
        if first:
            self._defaults = settings
        for fault in faults:
            self._show(types.MessageType.Warning, fault)
        if settings != self.session.settings:
            self.session.use(settings)
            self.session.daemon.forgive()
            self.check_at = None

    def try_again(self) -> None:
        """Forget earlier failures of the daemon."""
        self.session.daemon.forgive()
        self.session.edits.model.forget()
        self.status.daemon("ready", "")

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Log only the type of an internal error, because the error's message might contain source text."""
        if source is not FeatureRequestError:  # the reply to the request has that error
            self._log(types.MessageType.Error, f"a message failed ({type(error).__name__}).")

    def _daemon_is(self, state: str, message: str) -> None:
        """Update the status. Check the health of a ready daemon at once, and later every HEALTH_INTERVAL_S."""
        if (state, message) != self.status.state:
            self.status.daemon(state, message)
        if state != "ready":
            self.check_at = None
        elif self.check_at is None or now() >= self.check_at:
            self.check_at = now() + HEALTH_INTERVAL_S
            self.session.daemon.spawn(self._check())

    async def _check(self) -> None:
        health, settings = await self.session.daemon.health(), self.session.settings
        self.status.note(daemon_note(health, settings))
        offer = read_model_offer(health, settings)
        if offer is not None and not self._offered:
            self._offered = True
            self.protocol.notify("codespec/offer", offer)

    def _tell_more(self, document: Document) -> bool:
        if self.session.settings.more:
            self.session.counters.more += 1
            self.protocol.notify("codespec/more", {"uri": document.spelled, "version": document.version})
        return self.session.settings.more

    def _log(self, kind: types.MessageType, sentence: str) -> None:
        self.window_log_message(types.LogMessageParams(kind, f"codespec: {sentence}"))

    def _show(self, kind: types.MessageType, sentence: str) -> None:
        self.window_show_message(types.ShowMessageParams(kind, sentence))


def add_features(server: Server) -> None:
    """Register the features that do not depend on the client's capabilities, and those of Copilot's server."""
    server.feature(types.INITIALIZE)(_initialize)
    server.feature(types.INITIALIZED)(_initialized)
    server.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)(_configuration_changed)
    server.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)(_folders_changed)
    server.feature("textDocument/didPartiallyAcceptCompletion")(_partly_accepted)
    server.feature("textDocument/didFocus")(_focused)
    server.feature("codespec/status")(_status)
    server.feature(NEXT_EDIT)(_next_edit)
    server.feature(INLINE_EDIT)(_inline_edit)
    server.feature("codespec/didShowEdit")(lambda params: server.session.edits.shown(str(params.get("id", ""))))
    server.feature("textDocument/didShowInlineEdit")(_inline_edit_shown)
    server.command(ACCEPT_EDIT)(lambda *arguments: _report(server.session.edits.accepted, arguments))
    server.command(DISMISS_EDIT)(lambda *arguments: _report(server.session.edits.dismissed, arguments))
    server.command(ACCEPT)(lambda *arguments: _report(server.session.acceptance.accept, arguments))
    server.command("codespec.restart")(lambda *_: server.try_again())
    server.command("codespec.restartDaemon")(_restart_daemon)
    server.command("codespec.explain")(_explain)
    if not server.copilot:
        return
    for method in SIGN_IN:  # it always succeeds, because there is no account
        server.feature(method)(lambda _params: {"status": "OK", "user": "codespec"})
    for method in ACKNOWLEDGED:
        server.feature(method)(lambda _params: "OK")
    server.feature("getVersion")(lambda _params: {"version": VERSION})


def _initialize(ls: Server, params: types.InitializeParams) -> None:
    session = ls.session
    encoding = ServerCapabilitiesBuilder.choose_position_encoding(params.capabilities)
    session.encoding = cast(Encoding, str(getattr(encoding, "value", encoding)))
    client = params.client_info.name if params.client_info else ""
    session.vim = client in VIMS
    session.shows_more = _plain(params.capabilities.experimental)["codespec"]["more"]
    session.use_folders([folder.uri for folder in params.workspace_folders or []] or [params.root_uri or ""])
    options = params.initialization_options
    if options is not None:
        ls.configure(_plain(options), first=True)
    document = params.capabilities.text_document
    inline = document.inline_completion if document else None
    ls.dynamic = bool(inline and inline.dynamic_registration)
    ls.feature(
        types.TEXT_DOCUMENT_INLINE_COMPLETION,
        None if ls.dynamic else types.InlineCompletionOptions(),
    )(_inline_completion)
    if session.settings.completion == "on" or (session.settings.completion == "auto" and inline is None):
        ls.feature(types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=list(".(=:, ")))(
            _completion
        )


async def _initialized(ls: Server, _params: types.InitializedParams) -> None:
    """Register inline completion dynamically for files only, or VS Code would also show completions in chats."""
    if ls.dynamic:
        options = types.InlineCompletionRegistrationOptions(document_selector=SELECTOR)
        registration = types.Registration("codespec-inline", types.TEXT_DOCUMENT_INLINE_COMPLETION, options)
        ls.client_register_capability(types.RegistrationParams([registration]))


async def _configuration_changed(ls: Server, params: types.DidChangeConfigurationParams) -> None:
    """Apply the settings from the notification, or request them if the client did not send them."""
    sent = _plain(params.settings)
    workspace = ls.client_capabilities.workspace
    if not sent and workspace is not None and workspace.configuration:
        items = [types.ConfigurationItem(section="codespec")]
        answered = await ls.workspace_configuration_async(types.ConfigurationParams(items))
        sent = _plain(answered[0]) if answered else None
    ls.configure(sent)


def _folders_changed(ls: Server, params: types.DidChangeWorkspaceFoldersParams) -> None:
    ls.session.use_folders([each.uri for each in params.event.added], [each.uri for each in params.event.removed])


async def _inline_completion(ls: Server, request: PendingRequest | None) -> types.InlineCompletionList:
    if request is None:
        return types.InlineCompletionList([])
    shown = fitting(await ls.session.answer(request), request.edit_range)
    return types.InlineCompletionList([inline_item(each, request.edit_range) for each in shown])


async def _completion(ls: Server, request: PendingRequest | None) -> types.CompletionList:
    if request is None:
        return types.CompletionList(is_incomplete=True, items=[])
    return completion_list(fitting(await ls.session.answer(request), request.word), request.word)


async def _restart_daemon(ls: Server, *_arguments: Any) -> dict[str, str]:
    """Restart the daemon. The result's `message` says why the restart failed, or is ""."""
    ls.status.daemon("starting", "The daemon is restarting.")
    try:
        await ls.session.daemon.restart()
    except DaemonError as error:
        ls.status.daemon("unwell", str(error))
        return {"message": str(error)}
    ls.check_at = None
    ls.try_again()
    return {"message": ""}


def _explain(ls: Server, *_arguments: Any) -> dict[str, Any]:
    session, done = ls.session, ls.session.daemon.last_done
    times, cached = session.counters.milliseconds, session.completer.from_cache
    sentences = explain(done, ls.status.reason, times[-1] if times else None, from_cache=cached)
    return {**done, "sentences": list(sentences)}


def _partly_accepted(ls: Server, params: Mapping[str, Any]) -> None:
    """Count a partial acceptance, which Copilot's clients measure in UTF-16 units from the item's start."""
    match params:
        case {
            "item": {"command": {"arguments": [str(name), int(lead), int(typed)]}, "insertText": str(text)},
            "acceptedLength": int(length),
        } if length >= 0:
            taken = text.encode("utf-16-le", "surrogatepass")[: 2 * length].decode("utf-16-le", "ignore")
            ls.session.acceptance.accept(name, typed + len(taken) - lead)


def _focused(ls: Server, params: Mapping[str, Any]) -> None:
    """Handle the non-standard notification didFocus, ignoring invalid parameters."""
    match params:
        case {"textDocument": {"uri": str(uri)}, "position": {"line": int(line), "character": int(character)}} if (
            min(line, character) >= 0
        ):
            ls.session.focused(uri, types.Position(line, character))
        case {"textDocument": {"uri": str(uri)}}:
            ls.session.focused(uri)


async def _next_edit(ls: Server, request: EditRequest | None) -> dict[str, Any]:
    edit = await ls.session.edits.answer(request)
    if isinstance(edit, str) or request is None:
        return {"edits": [], "reason": edit}
    shown = {
        "id": edit.id,
        "textDocument": {"uri": request.document.spelled, "version": edit.version},
        "source": edit.source,
        "hunks": [as_whole_lines(hunk, request.document.buffer) for hunk in edit.hunks],
    }
    return {"edits": [shown], "reason": ""}


async def _inline_edit(ls: Server, request: EditRequest | None) -> dict[str, Any]:
    """Return only the first hunk, because some clients apply all hunks and others only the first one."""
    edit = await ls.session.edits.answer(request)
    if isinstance(edit, str) or request is None:
        return {"edits": []}
    buffer = request.document.buffer
    shown = {
        **without_kept_words(as_whole_lines(edit.hunks[0], buffer), buffer),
        "textDocument": {"uri": request.document.spelled, "version": edit.version},
        "command": {"title": "codespec", "command": ACCEPT_EDIT, "arguments": [edit.id, 0]},
    }
    return {"edits": [shown]}


def _inline_edit_shown(ls: Server, params: Mapping[str, Any]) -> None:
    match params:
        case {"item": {"command": {"arguments": [str(name), *_]}}}:
            ls.session.edits.shown(name)


def _report(report: Callable[[str], None], arguments: Sequence[Any]) -> None:
    """Call `report` with the first argument of a command, which is the name of a suggestion or edit."""
    if arguments and isinstance(arguments[0], str):
        report(arguments[0])


async def _status(ls: Server, _params: Mapping[str, Any]) -> dict[str, Any]:
    session, health = ls.session, await ls.session.daemon.health()
    if ls.check_at is not None and health.state == "ready":
        ls.status.note(daemon_note(health, session.settings))
    url, report = session.settings.url, asdict(health)
    del report["fault"]
    daemon = {"url": url, "page": f"{url}/", **report, "error": health.fault.sentence if health.fault else ""}
    last, counters = last_completion(session.daemon.last_done), session.counters.as_dict()
    edits = {"setting": session.settings.next_edit, "reason": session.edits.reason}
    own = {"daemon": daemon, "last": last, "counters": counters, "nextEdit": edits, "process": os.getpid()}
    return {**asdict(ls.status.now), **own}


def _plain(value: Any) -> Any:
    """Convert the named tuples that pygls may create for JSON objects back to plain JSON."""
    if hasattr(value, "_asdict"):
        return {name: _plain(inner) for name, inner in value._asdict().items()}
    return value
