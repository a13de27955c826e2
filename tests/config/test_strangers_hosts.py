"""Hosts that no resolver takes, in each setting that names one: one sentence, before anything is opened."""

from __future__ import annotations

import pytest
from codespec_lsp.settings import EditorSettings, read_settings

from codespec.api.config import resolve_serve
from codespec.api.limits import is_host
from codespec.api.settings import Settings
from codespec.cli.options import address_of
from codespec.errors import ConfigError
from tests.server.forked import run_forked

NONE = ["x" * 64, "x" * 70_000, "a..b", ".", "a b", "a\0b", "a/b", "\ud800"]
WITH_MORE = ["http://127.0.0.1", "127.0.0.1:80", "[::1]", "::1::", "user@host"]
SOME = ["127.0.0.1", "::1", "fe80::1%eth0", "localhost", "a_b.example", "a.", "*", "127.1", "caf\u00e9.example"]


@pytest.mark.parametrize("host", [*NONE, *WITH_MORE])
def test_what_is_no_host(host: str) -> None:
    assert not is_host(host)
    with pytest.raises(ConfigError, match="is invalid: write it"):
        resolve_serve({"host": host}, Settings(environment={}))


@pytest.mark.parametrize("host", NONE)
def test_addresses_with_such_a_host(host: str) -> None:
    for url in (f"http://{host}:1", f"http://{host}"):
        with pytest.raises(ConfigError, match="is not valid"):
            address_of(url, "127.0.0.1", 1, "")
        assert "/" in host or read_settings({"url": url}, EditorSettings())[1]


@pytest.mark.parametrize("host", SOME)
def test_what_is_one(host: str) -> None:
    assert is_host(host)
    assert resolve_serve({"host": host}, Settings(environment={})).host == host


@pytest.mark.parametrize("command", ["serve", "stats"])
def test_the_real_commands(command: str) -> None:
    words = ("--drafter", "none") if command == "serve" else ()
    done = run_forked(command, *words, CODESPEC_SERVE_HOST="a..b", CODESPEC_SERVE_TOKEN="abcdefgh-12345678")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "host 'a..b' is invalid" in done.stderr
