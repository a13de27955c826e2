"""The language server for one client: which features it has, and what each does in a few words.

Knows pygls and the session; holds no completion logic.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from lsprotocol import types
from pygls.capabilities import ServerCapabilitiesBuilder
from pygls.exceptions import FeatureRequestError
from pygls.lsp.server import LanguageServer

from codespec_lsp.buffer import Encoding
from codespec_lsp.daemon_client import DaemonError
from codespec_lsp.daemons import Chosen, Daemons
from codespec_lsp.desk import ContentModified
from codespec_lsp.documents import Document
from codespec_lsp.explaining import explain, last
from codespec_lsp.items import ACCEPT, completion_list, inline_item
from codespec_lsp.model_choice import note_of, read_offer
from codespec_lsp.protocol import Protocol, modified
from codespec_lsp.session import Asked, Session
from codespec_lsp.settings import Settings, read_settings
from codespec_lsp.status import Status, StatusLine
from codespec_lsp.uris import path_of
from codespec_lsp.writing import Writer

VERSION = "1"
LOOK_EVERY = 60.0  # seconds between two looks at a daemon that is ready and in use
SELECTOR = [types.TextDocumentFilterScheme(scheme=scheme) for scheme in ("file", "untitled")]
# Clients that show a \r as what it is; the others bring line ends into the document's own form.
SHOWS_RETURNS = ("Neovim", "Vim", "vim-lsp")


class Server(LanguageServer):
    """One connection's server; `defaults` are the settings before the client says any."""

    def __init__(self, daemons: Daemons, defaults: Settings) -> None:
        super().__init__("codespec", VERSION, protocol_cls=Protocol)
        loop = asyncio.get_running_loop()
        self._daemon = Chosen(daemons, lambda: self.session.settings)
        self.status = StatusLine(self._show_status, self._complain)
        self._look_at: float | None = None  # when the daemon's model is due to be looked at; None: once it is ready
        self._offered = False
        writer = Writer(self._daemon, self._daemon, self._daemon_is)
        self.session = Session(writer, self.status, self._tell_more, loop.time)
        self.session.use(defaults)
        self.dynamic = False
        add_features(self)

    def configure(self, sent: object) -> None:
        """Takes settings from the client; the user is told which can't be used."""
        settings, faults = read_settings(sent, self.session.settings)
        for fault in faults:
            self.window_show_message(types.ShowMessageParams(types.MessageType.Warning, fault))
        if settings != self.session.settings:
            self.session.use(settings)
            self._daemon.forgive()
            self._look_at = None

    def try_again(self) -> None:
        """Forgets what went wrong with the daemon."""
        self._daemon.forgive()
        self.status.daemon("ready", "")

    async def restart_daemon(self) -> dict[str, str]:
        """Has the daemon load its models anew; why that can't be, as `message`."""
        self.status.daemon("starting", "The daemon is started again.")
        try:
            await self._daemon.restart()
        except DaemonError as error:
            self.status.daemon("unwell", str(error))
            return {"message": str(error)}
        self._look_at = None
        self.try_again()
        return {"message": ""}

    async def health(self) -> dict[str, Any]:
        """The daemon's address, its page for people, how it is, and its models, as JSON values."""
        url, health = self.session.settings.url, await self._daemon.health()
        if self._look_at is not None and health.state == "ready":
            self.status.note(note_of(health, self.session.settings))
        return {"url": url, "page": f"{url}/", **asdict(health)}

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Our own faults are logged by their kind; a message of pygls' might hold source text. A request's error is in
        its reply."""
        if source is FeatureRequestError:
            return
        self.window_log_message(
            types.LogMessageParams(types.MessageType.Error, f"codespec: a message failed ({type(error).__name__}).")
        )

    def _daemon_is(self, state: str, message: str) -> None:
        """Once a daemon is ready, a look shows which model it has; later ones, what came to be wrong."""
        self.status.daemon(state, message)
        now = asyncio.get_running_loop().time()
        if state != "ready":
            self._look_at = None
        elif self._look_at is None or now >= self._look_at:
            self._look_at = now + LOOK_EVERY
            self.session.writer.keep(self._look())

    async def _look(self) -> None:
        health, settings = await self._daemon.health(), self.session.settings
        self.status.note(note_of(health, settings))
        offer = read_offer(health, settings)
        if offer is not None and not self._offered:
            self._offered = True
            self.protocol.notify("codespec/offer", offer.as_dict())

    def _tell_more(self, document: Document) -> bool:
        if self.session.settings.more:
            self.session.counters.more += 1
            self.protocol.notify("codespec/more", {"uri": document.uri, "version": document.version})
        return self.session.settings.more

    def _show_status(self, status: Status) -> None:
        self.protocol.notify("didChangeStatus", status.as_dict())

    def _complain(self, sentence: str) -> None:
        self.window_show_message(types.ShowMessageParams(types.MessageType.Error, f"codespec: {sentence}"))


def add_features(server: Server) -> None:
    """Registers what every client gets; what depends on the client is added when it says what it can."""
    server.feature(types.INITIALIZE)(_initialize)
    server.feature(types.INITIALIZED)(_initialized)
    server.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)(_configuration_changed)
    server.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)(_folders_changed)
    server.feature("textDocument/didShowCompletion")(_shown)
    server.feature("textDocument/didPartiallyAcceptCompletion")(_partly_accepted)
    server.feature("textDocument/didFocus")(_focused)
    server.feature("codespec/status")(_status)
    server.command(ACCEPT)(_accepted)
    server.command("codespec.restart")(_restart)
    server.command("codespec.restartDaemon")(_restart_daemon)
    server.command("codespec.explain")(_explain)


def _initialize(ls: Server, params: types.InitializeParams) -> None:
    session = ls.session
    encoding = ServerCapabilitiesBuilder.choose_position_encoding(params.capabilities)
    session.encoding = cast(Encoding, str(getattr(encoding, "value", encoding)))
    client = params.client_info.name if params.client_info else ""
    session.newline = "\n" if client in SHOWS_RETURNS else ""
    folders = [folder.uri for folder in params.workspace_folders or []] or [params.root_uri or ""]
    session.exclusions.set_roots([path_of(uri) for uri in folders if uri])
    options = params.initialization_options
    if options is not None:
        ls.configure(_plain(options))
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
    """Clients that can take features later get the one that VS Code would show in chat boxes for files only. What the
    first question needs is loaded beside that."""
    if ls.dynamic:
        options = types.InlineCompletionRegistrationOptions(document_selector=SELECTOR)
        registration = types.Registration("codespec-inline", types.TEXT_DOCUMENT_INLINE_COMPLETION, options)
        ls.client_register_capability(types.RegistrationParams([registration]))
    await asyncio.to_thread(importlib.import_module, "aiohttp")


async def _configuration_changed(ls: Server, params: types.DidChangeConfigurationParams) -> None:
    """Clients either send their settings or want to be asked for them."""
    sent = _plain(params.settings)
    workspace = ls.client_capabilities.workspace
    if not sent and workspace is not None and workspace.configuration:
        items = [types.ConfigurationItem(section="codespec")]
        answered = await ls.workspace_configuration_async(types.ConfigurationParams(items))
        sent = _plain(answered[0]) if answered else None
    ls.configure(sent)


def _folders_changed(ls: Server, _params: types.DidChangeWorkspaceFoldersParams) -> None:
    ls.session.exclusions.set_roots([path_of(uri) for uri in ls.workspace.folders])


async def _inline_completion(ls: Server, asked: Asked | None) -> types.InlineCompletionList:
    """Never null: an empty list clears what a client shows."""
    if asked is None:
        return types.InlineCompletionList(items=[])
    try:
        offers = await ls.session.answer(asked)
    except ContentModified:
        raise modified() from None
    return types.InlineCompletionList(items=[inline_item(offer, asked.target) for offer in offers])


async def _completion(ls: Server, asked: Asked | None) -> types.CompletionList:
    if asked is None:
        return types.CompletionList(is_incomplete=True, items=[])
    try:
        offers = await ls.session.answer(asked)
    except ContentModified:
        raise modified() from None
    return completion_list(offers, asked.word, asked.word.typed)


def _accepted(ls: Server, *arguments: Any) -> None:
    """An item's command: it was taken whole."""
    if arguments and isinstance(arguments[0], str):
        ls.session.acceptance.accept(arguments[0])


def _restart(ls: Server, *_arguments: Any) -> None:
    ls.try_again()


async def _restart_daemon(ls: Server, *_arguments: Any) -> dict[str, str]:
    return await ls.restart_daemon()


def _explain(ls: Server, *_arguments: Any) -> dict[str, Any]:
    """What the last completion cost, and why it is as it is."""
    times = ls.session.counters.milliseconds
    return explain(ls.session.writer.last_done, ls.status.reason, times[-1] if times else None)


def _shown(_ls: Server, _params: Mapping[str, Any]) -> None:
    """Copilot's clients say so; what was answered is counted as shown already."""


def _partly_accepted(ls: Server, params: Mapping[str, Any]) -> None:
    """Copilot's clients say how much of an item's text was taken, in UTF-16 units from its start."""
    item, length = params.get("item"), params.get("acceptedLength")
    command = item.get("command") if isinstance(item, Mapping) else None
    arguments = command.get("arguments") if isinstance(command, Mapping) else None
    text = item.get("insertText") if isinstance(item, Mapping) else None
    match arguments, text, length:
        case [str(name), int(lead), int(typed)], str(), int() if length >= 0:
            taken = text.encode("utf-16-le", "surrogatepass")[: 2 * length].decode("utf-16-le", "ignore")
            ls.session.acceptance.accept_part(name, typed + len(taken) - lead)


def _focused(ls: Server, params: Mapping[str, Any]) -> None:
    document = params.get("textDocument")
    uri = document.get("uri") if isinstance(document, Mapping) else None
    if isinstance(uri, str):
        ls.session.focused(uri)


async def _status(ls: Server, _params: Mapping[str, Any]) -> dict[str, Any]:
    """For a status line: how things are, the daemon and its models, and the counters."""
    session, daemon = ls.session, await ls.health()
    found = {"daemon": daemon, "last": last(session.writer.last_done), "counters": session.counters.as_dict()}
    return {**ls.status.now.as_dict(), **found, "process": os.getpid()}


def _plain(value: Any) -> Any:
    """JSON values as they came: pygls leaves them so, or makes named tuples of objects."""
    if hasattr(value, "_asdict"):
        return {name: _plain(inner) for name, inner in value._asdict().items()}
    return value
