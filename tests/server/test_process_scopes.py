"""Isolation between clients of a real daemon: caches, drafts and documents serve only the client that wrote them."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import LONG, Models
from tests.cli.conftest import light_models as models  # noqa: F401
from tests.cli.processes import SECONDS
from tests.pairs import prompts
from tests.server.daemons import Answer, wait_for
from tests.server.test_process import Process, daemon

PATH = "/v1/codespec/complete"
OTHER_USER = 12345  # need not exist
PROMPTS = iter(f"{number:x} {text}" for number, text in enumerate(prompts(8)[4:] * 4))  # no two share a prefix


class Served:
    """A daemon on a port and on a Unix socket."""

    def __init__(self, process: Process, place: Path) -> None:
        self.process, self.place = process, place

    def by_port(self, user: int | None = None) -> socket.socket:
        """Open a connection to the port, as this user or, with root, as another one."""
        own = os.geteuid()
        if user is not None:
            os.seteuid(user)
        try:
            return socket.create_connection((self.process.host, self.process.port), timeout=SECONDS)
        finally:
            os.seteuid(own)

    def by_socket(self) -> socket.socket:
        """Open a connection to the Unix socket."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(SECONDS)
        connection.connect(str(self.place))
        return connection

    def open(self, prompt: str, connection: socket.socket | None = None, key: str = "", **more: Any) -> Any:
        """Request a completion and leave the reply unread."""
        client = http.client.HTTPConnection("localhost")
        client.sock = connection or self.by_port()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        body = {"prefix": prompt, "max_tokens": 40, "shape": "raw", **more}
        client.request("POST", PATH, json.dumps(body).encode(), headers)
        return client

    def ask(self, prompt: str, connection: socket.socket | None = None, key: str = "", **more: Any) -> dict[str, Any]:
        """Return the last event of a completion."""
        return end_of(self.open(prompt, connection, key, **more))


def end_of(client: http.client.HTTPConnection) -> dict[str, Any]:
    reply = client.getresponse()
    events = Answer(reply.status, reply.headers, reply.read()).events
    client.close()
    (done,) = (data for name, data in events if name == "done")
    return dict(done)


def looked_up(done: dict[str, Any]) -> tuple[int, Any]:
    """Return rounds, and the tokens copied from stored texts."""
    return done["stats"]["rounds"], done["stats"]["by_source"].get("suffix")


@pytest.fixture(scope="module")
def served(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:  # noqa: F811
    place = tmp_path_factory.mktemp("scopes") / "s"
    with daemon(*models.flags, "--threads", "1", "--policy", "fixed", "--no-prefetch", "--socket", place) as process:
        process.until_ready()
        yield Served(process, place)


def test_a_key_finds_what_it_wrote_and_nothing_else(served: Served) -> None:
    prompt = next(PROMPTS)
    first = served.ask(prompt, key="one")
    for key in ("two", ""):
        other = served.ask(prompt, key=key)
        assert other["cached_tokens"] == other["stats"]["drafter_cached_tokens"] == 0
        assert looked_up(other) == looked_up(first)
    again = served.ask(prompt, key="one")
    assert again["cached_tokens"] == first["stats"]["prompt_tokens"] - 1
    assert again["stats"]["rounds"] < first["stats"]["rounds"], "its own text is at hand"


def test_a_users_own_connections_share(served: Served) -> None:
    """To the port and to the socket. Another user's do not; only root can simulate that, as in CI."""
    prompt = next(PROMPTS)
    stranger = served.ask(prompt, key="of one who has written nothing")
    first = served.ask(prompt, served.by_port())
    assert first["cached_tokens"] == 0
    if os.geteuid() == 0:
        other = served.ask(prompt, served.by_port(OTHER_USER))
        assert other["cached_tokens"] == 0 and looked_up(other) == looked_up(stranger)
        assert served.ask(prompt, served.by_port(OTHER_USER))["cached_tokens"] > 20
    for connection in (served.by_port(), served.by_socket()):
        assert served.ask(prompt, connection)["cached_tokens"] == first["stats"]["prompt_tokens"] - 1


def test_documents_of_one_name_are_each_clients_own(served: Served) -> None:
    """A newer request supersedes only the same client's older one."""
    long = {"max_tokens": LONG, "document": "a.py"}
    older = served.open(next(PROMPTS), key="one", **long)
    assert wait_for(lambda: served.process.num_open() == 1)
    served.ask(next(PROMPTS), key="two", document="a.py")
    assert served.process.num_open() == 1
    served.ask(next(PROMPTS), key="one", document="a.py")
    assert end_of(older)["finish_reason"] == "cancelled"


def test_the_same_request_is_computed_for_each_client(served: Served) -> None:
    prompt = next(PROMPTS)
    opened = [served.open(prompt, key=key, max_tokens=300) for key in ("one", "one", "two")]
    one, same, other = (end_of(client)["stats"] for client in opened)
    assert one["total_ms"] == same["total_ms"] != other["total_ms"]
