"""The daemon clients of this process: one for each configuration, shared by all editors that it serves."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from codespec.client.daemon_client import DaemonClient, Health, RawEvent
from codespec.client.proven_connections import ProvenConnections
from codespec.client.serve_command import serve_command, with_absolute_paths
from codespec.client.starter import Starter
from codespec.errors import ConfigError, DaemonError
from codespec.token_file import read_token
from codespec_lsp.settings import EditorSettings

Command = Callable[[int, Sequence[str]], list[str]]


class Daemons:
    """Holds the client and the starter for each combination of settings."""

    def __init__(self, command: Command = serve_command) -> None:
        self._command = command
        self._known: dict[tuple[Any, ...], tuple[DaemonClient, Starter]] = {}

    def find(self, settings: EditorSettings) -> tuple[DaemonClient, Starter]:
        """Return the client and the starter for these settings.

        From now on, only this starter replaces a dead daemon at that address. Raises DaemonError if the token can't be
        read or a relative path can't be resolved.
        """
        starts = settings.start_daemon and settings.daemon_is_here
        arguments = (*_model_flag(settings), *settings.daemon_arguments, *_token_flag(settings))
        key = (settings.url, settings.token_file, starts, arguments)
        if key not in self._known:
            client = DaemonClient(ProvenConnections(settings.url, _token(settings), "set codespec.url"))
            command = self._command(settings.port, with_absolute_paths(arguments)) if starts else None
            self._known[key] = (client, Starter(client, command, port=settings.port))
        for known, (_, starter) in self._known.items():
            starter.replaces = known == key or (starter.replaces and known[0] != settings.url)
        return self._known[key]

    async def close(self) -> None:
        """Close all connections. The daemons keep running."""
        for client, starter in self._known.values():
            await starter.close()
            await client.close()


def _token(settings: EditorSettings) -> str:
    """Return the daemon's token, or "" if none is set. Raises DaemonError if it can't be read."""
    try:
        return read_token(settings.token_file)
    except ConfigError as error:
        raise DaemonError(error.fault) from error


def _model_flag(settings: EditorSettings) -> tuple[str, ...]:
    return ("--model", settings.model) if settings.model else ()


def _token_flag(settings: EditorSettings) -> tuple[str, ...]:
    return ("--token-file", settings.token_file) if settings.token_file else ()


class ConfiguredDaemon:
    """The daemon for a client's current settings. `workspace` returns the workspace's folders."""

    def __init__(
        self, daemons: Daemons, settings: Callable[[], EditorSettings], workspace: Callable[[], Set[Path]]
    ) -> None:
        self._daemons = daemons
        self._settings = settings
        self._workspace = workspace
        self._secret = secrets.token_bytes(32)

    def events(self, body: Mapping[str, Any]) -> AsyncGenerator[RawEvent, None]:
        """Yield the events of one completion. Raises DaemonError."""
        return self._client()[0].events(body, self._session_of(body))

    async def send_files(self, body: Mapping[str, Any]) -> None:
        """Send the files that drafts in a document may copy from. Raises DaemonError."""
        await self._client()[0].send_files(body, self._session_of(body))

    async def ensure(self) -> None:
        """Return once a daemon listens. Raises DaemonError."""
        await self._client()[1].ensure()

    async def restart(self) -> None:
        """Restart the daemon, if an editor started it. Raises DaemonError."""
        await self._client()[1].restart()

    async def health(self) -> Health:
        """Return the daemon's health, without starting one."""
        try:
            return await self._client()[0].health()
        except DaemonError as error:
            return Health("foreign", str(error), fault=error.fault)

    def forgive(self) -> None:
        """Reset the starter's count of failed starts, at the user's request."""
        try:
            self._client()[1].forgive()
        except DaemonError:
            return  # the next request reports it

    def _session_of(self, body: Mapping[str, Any]) -> str:
        """Return the x-session-id of a document: a hash of workspace and file, keyed so that no one can guess them."""
        named = "\n".join([*sorted(map(str, self._workspace())), str(body.get("document", ""))])
        return hashlib.blake2b(named.encode("utf-8", "replace"), key=self._secret, digest_size=16).hexdigest()

    def _client(self) -> tuple[DaemonClient, Starter]:
        return self._daemons.find(self._settings())
