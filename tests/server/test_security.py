"""Access by host, origin and token; and secrets that no log and no reply contains."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from codespec.api.config import check_bind
from codespec.api.limits import is_loopback
from codespec.errors import ConfigError
from codespec.exclusions.secrets import is_secret
from codespec.user_folders import read_token
from tests.cli.processes import TOKEN
from tests.server.daemons import serving
from tests.server.fakes import FakeEngine
from tests.server.test_jobs import PATH, body


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "192.168.0.7"])
def test_a_foreign_name_is_refused(host: str) -> None:
    with serving(FakeEngine()) as served:
        reply = served.post(PATH, body("x"), Host=host)
        assert (reply.status, reply.json["error"]["field"]) == (403, "Host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:9", "[::1]:8765", "[::1]"])
def test_its_own_names_are_answered(host: str) -> None:
    with serving(FakeEngine()) as served:
        assert served.post(PATH, body("x"), Host=host).status == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost.evil.example"]
)
def test_foreign_pages_are_refused_and_cross_origin_requests_get_no_leave(origin: str) -> None:
    with serving(FakeEngine()) as served:
        for method, path in (("POST", PATH), ("GET", "/health"), ("OPTIONS", PATH)):
            reply = served.ask(method, path, body("x"), Origin=origin)
            assert (reply.status, reply.json["error"]["field"]) == (403, "Origin")
            assert not [name for name in reply.headers if name.lower().startswith("access-control")]
        assert served.ask("GET", "/health", Origin=f"http://127.0.0.1:{served.port}").status == 200


def test_a_token_is_asked_for_everywhere() -> None:
    with serving(FakeEngine(), token=TOKEN) as served:
        for path in ("/v1/models", "/metrics", "/nowhere"):
            assert served.ask("GET", path).status == 401
        assert served.ask("GET", "/health").json == {"status": "alive"}, "for supervisors, without details"
        for wrong in ("", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer \xe9"):
            reply = served.post(PATH, body("x"), Authorization=wrong)
            assert (reply.status, reply.json["error"]["field"]) == (401, "Authorization")
            assert TOKEN not in reply.body.decode()
        assert served.post(PATH, body("x"), Authorization=f"Bearer {TOKEN}").status == 200
        assert served.post(PATH, body("x"), Authorization=f"bearer  {TOKEN} ").status == 200


def test_an_empty_bearer_is_fine_without_a_token() -> None:
    """llama.vim sends one."""
    with serving(FakeEngine()) as served:
        assert served.post(PATH, body("x"), Authorization="Bearer ").status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.7", "::", "example.org", ""])
def test_other_machines_need_a_token(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match="--token-file"):
        check_bind(host, "")
    check_bind(host, TOKEN)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_needs_none(host: str) -> None:
    check_bind(host, "")


def test_where_the_token_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(str(file), {}) == TOKEN
    assert read_token("", {"CODESPEC_SERVE_TOKEN": TOKEN}) == TOKEN
    assert read_token("", {}) == ""
    for bad in ("few", "", "ä" * 20, "a b\x07" * 8):
        file.write_text(bad)
        with pytest.raises(ConfigError) as caught:
            read_token(str(file), {})
        assert not bad or bad not in str(caught.value)
    with pytest.raises(ConfigError, match="can't be read"):
        read_token(str(tmp_path / "none"), {})


def test_no_text_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(FakeEngine()) as served:
        for prefix in ("MARK", "MARK BOOM", "MARK UNTAKEN", "MARK REFUSED"):
            served.post(PATH, body(prefix))
        served.ask("GET", "/MARK?MARK=MARK", X_Mark="MARK")
        served.post(PATH, b'{"prefix": "MARK')
        raw(served.port, b"MARK MARK\r\nMARK\x00: MARK\r\n\r\n")
    assert "MARK" not in caplog.text
    assert f"POST {PATH} 200" in caplog.text and "GET - 404" in caplog.text


def raw(port: int, data: bytes) -> bytes:
    """Return the reply to bytes that may not be HTTP."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while piece := connection.recv(4096):
            received += piece
        return received


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"a" * 20_000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 500 + b"\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET " + b"/a" * 10_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_bad_heads_are_refused_at_once(head: bytes) -> None:
    with serving(FakeEngine()) as served:
        reply = raw(served.port, head)
        assert reply.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")) or not reply
        assert served.post(PATH, body("x")).status == 200


def test_a_body_that_is_too_large_is_refused() -> None:
    with serving(FakeEngine()) as served:
        reply = served.post("/completion", b'{"prompt": "' + b"a" * (9 << 20) + b'"}')
        assert (reply.status, reply.json["error"]["field"]) == (413, "body")


@pytest.mark.parametrize(
    "path",
    [".env", "src/.env.local", "file:///srv/app/.ENV", r"C:\keys\id_rsa", "id_ed25519.pub", "a/server.key", ".netrc",
     "conf/secrets.toml", "credentials", "credentials.json", "b.kdbx", "c.PEM", ".dev.vars"],
)  # fmt: skip
def test_secret_files_are_no_context(path: str) -> None:
    assert is_secret(path)
    with serving(engine := FakeEngine()) as served:
        reply = served.post(PATH, body("x", snippets=[{"path": "a.py", "text": "a"}, {"path": path, "text": "KEY"}]))
        assert (reply.status, reply.json["error"]["field"]) == (400, "snippets[1].path")
        extra = [{"filename": path, "text": "KEY"}, {"filename": "a.py", "text": "a"}]
        assert served.post("/infill", {"input_prefix": "x", "input_extra": extra}).status == 200
    assert [snippet.text for request in engine.submitted for snippet in request.snippets] == ["a"]


@pytest.mark.parametrize("path", ["", "environment.py", "src/keys.py", "monkey.py", "secrets/a.py", "pem.py"])
def test_other_files_are(path: str) -> None:
    assert not is_secret(path)
