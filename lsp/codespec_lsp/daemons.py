"""The daemons that this process uses: one client for each address and token, shared by all editors it serves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from codespec.errors import ConfigError
from codespec.token_file import read_token
from codespec_lsp.daemon_client import DaemonClient, DaemonError, Health
from codespec_lsp.daemon_process import Starter
from codespec_lsp.serve_command import serve_command, with_absolute_paths
from codespec_lsp.settings import Settings

Command = Callable[[int, Sequence[str]], list[str]]


class Daemons:
    """Finds the client and the starter for some settings."""

    def __init__(self, command: Command = serve_command) -> None:
        self._command = command
        self._known: dict[tuple[Any, ...], tuple[DaemonClient, Starter]] = {}

    def find(self, settings: Settings) -> tuple[DaemonClient, Starter]:
        """Both for these settings, whose starter alone replaces a dead daemon at that address from now on. Raises
        DaemonError where the token can't be read, or a path means nothing."""
        starts = settings.start_daemon and settings.daemon_is_here
        arguments = (*_model_flag(settings), *settings.daemon_arguments, *_token_flag(settings))
        key = (settings.url, settings.token_file, starts, arguments)
        if key not in self._known:
            client = DaemonClient(settings.url, _token(settings))
            command = self._command(settings.port, with_absolute_paths(arguments)) if starts else None
            self._known[key] = (client, Starter(client, command, port=settings.port))
        for known, (_, starter) in self._known.items():
            starter.replaces = known == key or (starter.replaces and known[0] != settings.url)
        return self._known[key]

    async def close(self) -> None:
        """Ends all connections; daemons go on."""
        for client, starter in self._known.values():
            await starter.close()
            await client.close()


def _token(settings: Settings) -> str:
    """What the daemon asks for; "" for nothing. Raises DaemonError where it can't be read."""
    try:
        return read_token(settings.token_file)
    except ConfigError as error:
        raise DaemonError(str(error)) from error


def _model_flag(settings: Settings) -> tuple[str, ...]:
    return ("--model", settings.model) if settings.model else ()


def _token_flag(settings: Settings) -> tuple[str, ...]:
    return ("--token-file", settings.token_file) if settings.token_file else ()


class ConfiguredDaemon:
    """The daemon that a client's settings name at the time."""

    def __init__(self, daemons: Daemons, settings: Callable[[], Settings]) -> None:
        self._daemons = daemons
        self._settings = settings

    async def events(self, body: Mapping[str, Any]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """The events of one completion. Raises DaemonError."""
        events = self._client()[0].events(body)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # it is a generator

    async def send_files(self, body: Mapping[str, Any]) -> None:
        """Sends the files that completions of a document may copy from. Raises DaemonError."""
        await self._client()[0].send_files(body)

    async def ensure(self) -> None:
        """Returns once a daemon listens. Raises DaemonError."""
        await self._client()[1].ensure()

    async def restart(self) -> None:
        """Ends the daemon that an editor started, and starts it again. Raises DaemonError."""
        await self._client()[1].restart()

    async def health(self) -> Health:
        """How the daemon is; it is not started for that."""
        try:
            return await self._client()[0].health()
        except DaemonError as error:
            return Health("foreign", str(error), error=str(error))

    def forgive(self) -> None:
        """The user asks for another try."""
        try:
            self._client()[1].forgive()
        except DaemonError:
            return  # the next request reports it

    def _client(self) -> tuple[DaemonClient, Starter]:
        return self._daemons.find(self._settings())
