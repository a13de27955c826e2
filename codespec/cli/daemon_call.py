"""A client of the daemon that uses only the standard library: status, statistics and completions.

The daemon must first prove that it is the user's own, so an impostor on its port gets neither the token nor a text.
Starts nothing, and imports neither torch nor the daemon's packages.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from codespec import proof
from codespec.bounded_json import parse_json
from codespec.errors import ConfigError, ServeError

SECONDS = 3.0  # timeout for each step of a short reply
MOST_REPLY = 4 << 20  # bytes
STATS, COMPLETE = "/v1/codespec/stats", "/v1/codespec/complete"
Who = Literal["nobody", "daemon", "locked", "stranger", "silent"]


@dataclass(frozen=True, slots=True)
class Found:
    """The program found at an address, and a daemon's stats reply.

    `who` is `nobody`, the user's `daemon`, a daemon with a different token (`locked`), HTTP without the proof
    (`stranger`), or not HTTP (`silent`).
    """

    who: Who
    stats: Mapping[str, Any] = field(default_factory=dict)

    @property
    def daemon(self) -> Mapping[str, Any]:
        """The daemon's own report: version, state, model, mode and more."""
        found: Mapping[str, Any] = self.stats["daemon"]
        return found

    @property
    def version(self) -> str:
        """The daemon's version."""
        return str(self.daemon["version"])

    @property
    def state(self) -> str:
        """The daemon's state: starting, ready, stopping, failed or stopped."""
        return str(self.daemon["state"])


class UnprovenError(ServeError):
    """Raised if a server does not prove to be the user's daemon. `locked`: it may be, but requires a token."""

    def __init__(self, url: str, locked: bool) -> None:
        super().__init__(f"What answers at {url} can't prove that it is your daemon: check --url and --token-file.")
        self.locked = locked


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
        """Identify the program at the address, within seconds. Raise ConfigError if a proof can't be requested."""
        try:
            status, told = self.ask("GET", STATS)
        except UnprovenError as unproven:
            return Found("locked" if unproven.locked and not self.token else "stranger")
        except ConnectionRefusedError:
            return Found("nobody")
        except (OSError, http.client.HTTPException):
            return Found("silent")
        if status == 200 and isinstance(told.get("daemon"), dict) and {"version", "state"} <= told["daemon"].keys():
            return Found("daemon", told)
        error = told.get("error")
        locked = status == 401 and isinstance(error, dict) and error.get("field") == "Authorization"
        return Found("locked" if locked else "stranger")

    def ask(self, method: str, path: str) -> tuple[int, dict[str, Any]]:
        """Return status and JSON object ({} if none) of a reply. Raise OSError, HTTPException or CodespecError."""
        with self._reply(method, path, None, SECONDS) as reply:
            return reply.status, _as_object(reply.read(MOST_REPLY))

    def complete(self, body: Mapping[str, Any], seconds: float) -> str:
        """Return the text from codespec's own endpoint. Raises the same errors as `stream`."""
        return "".join(value["text"] for name, value in self.stream(body, seconds) if name == "text")

    def stream(self, body: Mapping[str, Any], seconds: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and data of the events of codespec's own endpoint, up to `done`.

        Closing the iterator cancels the request. Raise OSError, HTTPException, or ServeError with the daemon's message
        and status.
        """
        with self._reply("POST", COMPLETE, json.dumps(body).encode(), seconds) as reply:
            if reply.status != 200:
                told = message_of(_as_object(reply.read(MOST_REPLY)))
                raise ServeError(told or f"The daemon answered with status {reply.status}.", reply.status)
            name = ""
            while line := reply.readline(MOST_REPLY):
                field, _, text = line.rstrip(b"\n").partition(b": ")
                if field == b"event":
                    name = text.decode()
                elif field == b"data":
                    value = _as_object(text)
                    if name == "error":
                        raise ServeError(str(value.get("message")), 500)
                    yield name, value
                    if name == "done":
                        return
        raise ServeError("The daemon's stream ended in the middle: look with `codespec doctor`.", 502)

    @contextmanager
    def _reply(self, method: str, path: str, body: bytes | None, seconds: float) -> Iterator[http.client.HTTPResponse]:
        """Yield the reply of a daemon that has proven itself on this connection."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=seconds)
        try:
            self._check(connection)
            connection.request(method, path, body, {"Authorization": f"Bearer {self.token}"} if self.token else {})
            yield connection.getresponse()
        finally:
            connection.close()

    def _check(self, connection: http.client.HTTPConnection) -> None:
        """Connect and verify the proof. It holds for this connection only, which is never reopened."""
        connection.connect()
        connection.auto_open = 0
        peer, nonce = connection.sock.getpeername(), proof.new_nonce()
        connection.request("POST", proof.PATH, json.dumps({"nonce": nonce.hex()}).encode())
        reply = connection.getresponse()
        said = _as_object(reply.read(proof.MOST_REPLY)) if reply.status == 200 else {}
        if not proof.is_proven(said, proof.own_keys(self.token), nonce, peer):
            raise UnprovenError(self.url, locked=said.get("by_token") is not None)


def message_of(told: Mapping[str, Any]) -> str:
    """Return the message of an error reply, or "" for any other reply."""
    error = told.get("error")
    return str(error.get("message", "")) if isinstance(error, dict) else ""


def _as_object(data: bytes) -> dict[str, Any]:
    try:
        value = parse_json(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def add_address_options(parser: argparse.ArgumentParser, *, config: bool = True) -> None:
    """Add --url and --token-file, and --config unless another function adds it."""
    parser.add_argument("--url", metavar="URL", help="where the daemon listens (default: as `codespec serve` would)")
    if config:
        parser.add_argument("--config", type=Path, metavar="FILE", help="the TOML file that the daemon was given")
    parser.add_argument("--token-file", metavar="FILE", help="the token that the daemon asks for")


def find_address(options: argparse.Namespace) -> Address:
    """Return the daemon's address from --url, or from the settings it was started with. Raise ConfigError."""
    from codespec.serve_config import resolve_serve
    from codespec.token_file import read_token

    config = resolve_serve({"token_file": getattr(options, "token_file", None)}, options.config)
    return address_of(getattr(options, "url", None), config.host, config.port, read_token(config.token_file))


def address_of(url: str | None, host: str, port: int, token: str) -> Address:
    """Return the address in `url`, else that of the settings. Raise ConfigError if the URL is invalid."""
    if url is None:
        return Address(_reachable(host), port, token)
    match = re.fullmatch(r"http://(\[[0-9a-fA-F:]+\]|[^/:\[\]@]+):(\d{1,5})/?", url)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ConfigError(f"--url {url} can't be used: write http://HOST:PORT, as `codespec serve` printed it.")
    return Address(match[1].strip("[]"), int(match[2]), token)


def _reachable(host: str) -> str:
    """Return an address to connect to; an unspecified address becomes the loopback address."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def why_taken(address: Address) -> str:
    """Return why no daemon can listen on the port although no program answers there, or "" if one can."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # same as the daemon
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            return error.strerror or type(error).__name__
    return ""
