"""The language server with another program in the daemon's place.

The impostor gets nothing of the user's and is reported. The real daemon is recognized by its socket, or by a proof on
each connection.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from codespec_lsp.settings import EditorSettings

from codespec.client.proof import PATH
from tests.cli.conftest import Models
from tests.cli.conftest import light_models as models  # noqa: F401
from tests.cli.processes import TOKEN, user_environment
from tests.lsp.conversation import Editor, run
from tests.lsp.fake_daemon import FakeDaemon, editor
from tests.lsp.fake_daemon import daemon as fake_daemon
from tests.lsp.impostors import Answer, Impostor, impostor, knows_nothing, plays_daemon, relays, sends_on
from tests.server.daemons import wait_for
from tests.server.test_process import Process, daemon

SOURCE = "passphrase = 'swordfish'\nx = \n"
QUIET = ("--warmup", "0", "--threads", "1", "--no-prefetch")
END = b"end"
Scenario = Callable[[Editor], Awaitable[None]]


def served(models: Models, state: Path, *words: str | Path, **settings: Any) -> Any:  # noqa: F811
    """Run a real daemon."""
    return daemon(*models.flags, *QUIET, *words, env=user_environment(XDG_STATE_HOME=str(state)), **settings)


def until_ready(real: Process) -> None:
    assert wait_for(lambda: real.ask("GET", "/health", Authorization=f"Bearer {TOKEN}")[0] == 200)


@dataclass
class Own:
    """A real daemon of the user's, which several tests ask; `token_file` is None if it has no token."""

    real: Process
    state: Path
    token_file: Path | None
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.real.port}"

    @property
    def socket(self) -> Path:
        return self.state / "codespec" / f"daemon-{self.real.port}.sock"

    @contextmanager
    def without_socket(self) -> Iterator[None]:
        """Move the socket away, as if there were none."""
        aside = self.socket.with_suffix(".aside")
        self.socket.rename(aside)
        try:
            yield
        finally:
            with suppress(FileNotFoundError):
                self.socket.unlink()
            aside.rename(self.socket)


@contextmanager
def run_own(models: Models, token: str) -> Iterator[Own]:  # noqa: F811
    with tempfile.TemporaryDirectory(prefix="cs-") as folder:  # so short a name that a socket may lie in it
        state, token_file, log = Path(folder), Path(folder, "token"), Path(folder, "log")
        token_file.write_text(token)
        words = ["--access-log", *(["--token-file", token_file] if token else [])]
        with log.open("wb") as stderr, served(models, state, *words, stderr=stderr) as real:
            until_ready(real)
            yield Own(real, state, token_file if token else None, log)


@pytest.fixture(scope="module")
def with_token(models: Models) -> Iterator[Own]:  # noqa: F811
    """Return a real daemon with a token."""
    with run_own(models, TOKEN) as own:
        yield own


@pytest.fixture(scope="module")
def without_token(models: Models) -> Iterator[Own]:  # noqa: F811
    """Return a real daemon without a token."""
    with run_own(models, "") as own:
        yield own


async def converse(url: str, state: Path, scenario: Scenario, token_file: Path | None = None) -> None:
    """Run the scenario with an editor of a language server that starts no daemon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state))
        async with editor(EditorSettings(url=url, start_daemon=False)) as client:
            options = {"budgetMs": 60_000, "maxTokens": 2, "tokenFile": str(token_file) if token_file else None}
            await client.start(initializationOptions=options)
            client.open(SOURCE)
            await scenario(client)


def on_a_server(url: str, state: Path, scenario: Scenario, token_file: Path | None = None) -> None:
    """Run the scenario with a time limit."""
    run(converse(url, state, scenario, token_file), seconds=300)


async def gets_nothing(client: Editor) -> None:
    """Request a completion; assert that there is none and that the reason is reported."""
    for _ in range(2):
        assert await client.texts(1, 4) == []
    status = await client.status()
    assert status["kind"] == "Error" and "can't prove that it is your daemon" in status["message"], status
    assert status["daemon"]["state"] == "foreign" and "set codespec.url." in status["daemon"]["message"]
    assert len(client.heard("window/showMessage")) == 1


async def is_answered(client: Editor, character: int = 4) -> None:
    """Request a completion; random models may write nothing to show."""
    await client.texts(1, character)
    status = await client.status()
    assert (status["kind"], status["daemon"]["state"]) == ("Normal", "ready"), status


def check(one: Impostor) -> None:
    """Assert that it received a proof request and nothing else: no token, no text, no name."""
    assert set(one.asked) == {f"POST {PATH}"}
    assert TOKEN not in one and "swordfish" not in one and "a.py" not in one and "Authorization" not in one


@pytest.mark.parametrize("answer", [knows_nothing, plays_daemon])
def test_who_took_the_port_gets_nothing(answer: Answer, state: Path, token_file: Path) -> None:
    with impostor(answer) as one:
        on_a_server(one.url, state, gets_nothing, token_file)
        check(one)


def test_who_sends_it_on_is_not_followed(state: Path, token_file: Path) -> None:
    with impostor(plays_daemon) as other, impostor(sends_on(other.port)) as one:
        on_a_server(one.url, state, gets_nothing, token_file)
        check(one)
        assert other.heard == []


def test_not_even_the_users_own_daemon_may_send_it_on(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(state))

    async def scenario(client: Editor) -> None:
        assert await client.texts(1, 4) == []
        assert "sent a redirect (HTTP 307), which is refused" in (await client.status())["message"]

    async def whole(other: Impostor) -> None:
        async def complete(_fake: FakeDaemon, _request: web.Request) -> web.Response:
            raise web.HTTPTemporaryRedirect(f"{other.url}/v1/codespec/complete")

        monkeypatch.setattr(FakeDaemon, "complete", complete)
        async with fake_daemon() as fake:
            await converse(f"http://127.0.0.1:{fake.port}", state, scenario)

    with impostor(plays_daemon) as other:
        run(whole(other))
        assert other.heard == []


@pytest.mark.parametrize("host", ["127.0.0.1", "[::ffff:127.0.0.1]"])
def test_who_has_the_real_daemon_answer_for_it_gets_nothing(host: str, with_token: Own) -> None:
    with impostor(relays(with_token.real.port)) as one:
        on_a_server(f"http://{host}:{one.port}", with_token.state, gets_nothing, with_token.token_file)
        check(one)


@pytest.mark.parametrize("place", ["auto", "none"])
def test_who_takes_the_port_of_a_daemon_that_died_gets_nothing(
    place: str,
    models: Models,  # noqa: F811
    state: Path,
    token_file: Path,
) -> None:
    """Connections to the daemon were open; its socket is still in the folder."""
    with served(models, state, "--token-file", token_file, "--socket", place) as real:
        until_ready(real)

        async def scenario(client: Editor) -> None:
            await is_answered(client)
            real.process.kill()
            real.process.wait()
            with impostor(plays_daemon, real.port) as one:
                client.type(2, 1, 4, "y")
                assert await client.texts(1, 5) == []
                status = await client.status()
                assert "can't prove that it is your daemon" in status["message"], status
                check(one)

        on_a_server(f"http://127.0.0.1:{real.port}", state, scenario, token_file)


@pytest.mark.parametrize("token", [True, False], ids=["token", "no token"])
@pytest.mark.parametrize("place", ["auto", "none"])
def test_the_users_own_daemon_is_asked(place: str, token: bool, with_token: Own, without_token: Own) -> None:
    """Through its socket without a proof; through its port with one per connection, of which there are few."""
    own = with_token if token else without_token
    before = len(own.log.read_text())

    async def scenario(client: Editor) -> None:
        for number in range(12):
            await is_answered(client, 4 + number)
            client.type(number + 2, 1, 4 + number, "y")

    with nullcontext() if place == "auto" else own.without_socket():
        on_a_server(own.url, own.state, scenario, own.token_file)
    asked = "POST /v1/codespec/complete"
    assert wait_for(lambda: own.log.read_text()[before:].count(asked) >= 12), own.log.read_text()[before:]
    lines = own.log.read_text()[before:]
    proofs = len(re.findall(rf"POST {PATH} \d+ ", lines))
    if place == "auto":
        assert proofs == 0, lines
    else:
        cancelled = len(re.findall("/v1/codespec/complete 499 ", lines))
        assert 1 <= proofs <= 3 + cancelled, lines


def test_a_wrong_token_is_no_proof_elsewhere_and_no_trouble_for_the_secret(with_token: Own, tmp_path: Path) -> None:
    """The secret proves the daemon is the user's, so it may see a token; its demand for another is reported."""
    mine = tmp_path / "mine"
    mine.write_text(f"{TOKEN}-of-others")

    async def scenario(client: Editor) -> None:
        assert await client.texts(1, 4) == []
        assert "Authorization lacks the daemon's token" in (await client.status())["message"]

    with with_token.without_socket():
        on_a_server(with_token.url, with_token.state, scenario, mine)


@pytest.mark.parametrize(
    ("name", "mode", "fix"),
    [
        ("codespec", 0o777, "run `chmod 700 {}`"),
        ("codespec/secret", 0o644, "have read the secret in {}: delete it and restart"),
    ],
)
def test_where_others_have_a_hand_in_it_nothing_is_sent(name: str, mode: int, fix: str, without_token: Own) -> None:
    """Neither after a proof by the secret nor through a socket that others could have created."""
    place = without_token.state / name

    async def scenario(client: Editor) -> None:
        assert await client.texts(1, 4) == []
        status = await client.status()
        assert status["kind"] == "Error" and fix.format(place) in status["message"], status

    with without_token.without_socket(), with_mode(place, mode):
        with overheard(without_token.socket, mode == 0o777) as heard:
            on_a_server(without_token.url, without_token.state, scenario)
        assert heard == []


@contextmanager
def with_mode(place: Path, mode: int) -> Iterator[None]:
    before = place.stat().st_mode
    place.chmod(mode)
    try:
        yield
    finally:
        os.chmod(place, before)


@contextmanager
def overheard(place: Path, there: bool) -> Iterator[list[bytes]]:
    """Return the bytes sent to a socket created by others, or nothing if there is no socket."""
    heard: list[bytes] = []
    if not there:
        yield heard
        return
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
        server.listen()
        thread = threading.Thread(target=keep_all, args=(server, heard))
        thread.start()
        try:
            yield heard
        finally:
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(str(place))
                last.sendall(END)
            thread.join(60)


def keep_all(server: socket.socket, heard: list[bytes]) -> None:
    """Record everything until END arrives."""
    while True:
        connection, _ = server.accept()
        with connection:
            connection.settimeout(60)
            data = connection.recv(4096)
        if data == END:
            return
        if data:
            heard.append(data)
