"""The daemon's address for the commands, and its client without an event loop.

Connects to the daemon's port, never to its Unix socket, because `codespec doctor` checks that port. Starts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from codespec.api.limits import is_host
from codespec.api.serve_config import resolve_serve
from codespec.cli.options import add_config_option
from codespec.client.connections import ProvenConnections
from codespec.client.daemon_client import DaemonClient, Found, RawEvent
from codespec.errors import Absent, ConfigError
from codespec.user_folders import read_token

SECONDS = 3.0  # timeout for each step of a short reply


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a daemon, and its token ("": none)."""

    host: str
    port: int
    token: str = ""

    @property
    def url(self) -> str:
        """The URL of the daemon."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def look(self) -> Found:
        """Identify the program at the address, within seconds. Raise ConfigError if a proof can't be checked."""

        async def call() -> Found:
            async with self._client(SECONDS) as client:
                return await client.look()

        return asyncio.run(call())

    def complete(self, body: Mapping[str, Any], seconds: float) -> str:
        """Return the text from codespec's own endpoint. Raise DaemonError."""
        return "".join(value["text"] for name, value in self.stream(body, seconds) if name == "text")

    def stream(self, body: Mapping[str, Any], seconds: float) -> Iterator[RawEvent]:
        """Yield the events of codespec's own endpoint, with at most `seconds` between two. Raise DaemonError.

        Closing the iterator cancels the request.
        """
        client, is_done = self._client(seconds), False
        events = client.events(body)

        async def following() -> RawEvent | None:
            return await anext(events, None)

        with asyncio.Runner() as runner:
            try:
                while event := runner.run(following()):
                    is_done |= event[0] == "done"
                    yield event
            finally:
                runner.run(events.aclose())
                runner.run(client.close())
        if not is_done:
            raise Absent("The daemon's stream ended in the middle", "look with `codespec doctor`")

    def _client(self, seconds: float) -> DaemonClient:
        fix = "check --url and --token-file"
        return DaemonClient(
            ProvenConnections(self.url, self.token, fix, seconds=SECONDS, patience=seconds, by_socket=False)
        )


def add_address_options(parser: argparse.ArgumentParser, *, config: bool = True) -> None:
    """Add --url and --token-file, and --config unless another function adds it."""
    parser.add_argument("--url", metavar="URL", help="where the daemon listens (default: as `codespec serve` would)")
    if config:
        add_config_option(parser, "the daemon's TOML file")
    parser.add_argument("--token-file", metavar="FILE", help="a file with the daemon's token")


def find_address(options: argparse.Namespace) -> Address:
    """Return the daemon's address from --url, or from the settings it was started with. Raise ConfigError."""
    config = resolve_serve({"token_file": getattr(options, "token_file", None)}, options.config)
    return address_of(getattr(options, "url", None), config.host, config.port, read_token(config.token_file))


def address_of(url: str | None, host: str, port: int, token: str) -> Address:
    """Return the address in `url`, else that of the settings. Raise ConfigError if the URL is invalid."""
    if url is None:
        return Address(_reachable(host), port, token)
    match = re.fullmatch(r"http://(\[[0-9a-fA-F:]+\]|[^/:\[\]@]+):(\d{1,5})/?", url)
    if match is None or not 0 < int(match[2]) < 65536 or not is_host(match[1].strip("[]")):
        raise ConfigError(f"--url {url[:80]} can't be used", "write http://HOST:PORT, as `codespec serve` printed it")
    return Address(match[1].strip("[]"), int(match[2]), token)


def _reachable(host: str) -> str:
    """Return an address to connect to; an unspecified address becomes the loopback address."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
