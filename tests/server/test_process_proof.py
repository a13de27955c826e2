"""`codespec serve` as a user starts it proves its owner: with the user's own socket, and a proof on its port."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
from pathlib import Path
from typing import Any

from codespec.client.proof import PATH, Keys, is_proven, new_nonce, stretched
from tests.cli.processes import TOKEN, user_environment
from tests.server.test_process import Process, daemon, over_unix

WITHOUT = "codespec: continues without a socket."


def serving(state: Path, *words: str | Path, **settings: Any) -> Any:
    return daemon(*words, env=user_environment(XDG_STATE_HOME=str(state)), **settings)


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def open_to_all() -> None:
    """Set a umask under which a user's files are accessible to everyone unless restricted."""
    os.umask(0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_it_listens_on_a_socket_of_the_users_own(state: Path) -> None:
    folder = state / "codespec"
    with serving(state, preexec_fn=open_to_all) as served:
        place = folder / f"daemon-{served.port}.sock"
        assert served.process.stdout is not None
        assert served.process.stdout.readline().decode() == f"codespec: listening on unix:{place}\n"
        assert [mode_of(file) for file in (folder, place, folder / "secret")] == [0o700, 0o600, 0o600]
        assert b"HTTP/1.1" in over_unix(place, "/health")
        assert served.end(signal.SIGTERM)[0] == 0
    assert not place.exists()


def test_none_is_made_where_none_is_wanted(state: Path) -> None:
    with serving(state, "--socket", "none") as served:
        assert served.ask("GET", "/health")[0] in (200, 503)
        code, out, err = served.end(signal.SIGTERM)
    assert code == 0 and "unix:" not in out and "socket" not in err
    assert not list((state / "codespec").glob("*.sock"))


def test_where_others_can_write_it_goes_on_and_says_so(state: Path) -> None:
    folder = state / "codespec"
    folder.mkdir()
    folder.chmod(0o777)
    with serving(state) as served:
        assert served.ask("GET", "/health")[0] in (200, 503)
        nonce = new_nonce()
        assert proof_of(served, nonce)["by_secret"] is None
        _, _, err = served.end(signal.SIGTERM)
    fix = f"Other users can write to {folder}: run `chmod 700 {folder}`."
    assert err.splitlines()[:2] == [f"codespec: editors can't verify this daemon. {fix}", f"{WITHOUT} {fix}"]
    assert not list(folder.glob("*.sock")) and not (folder / "secret").exists()


def test_where_its_name_would_be_too_long_it_goes_on_and_says_so(state: Path) -> None:
    with serving(state / ("x" * 100)) as served:
        assert served.ask("GET", "/health")[0] in (200, 503)
        _, _, err = served.end(signal.SIGTERM)
    message = err.splitlines()[0]
    assert re.fullmatch(rf"{WITHOUT} The socket .* \(.*too long\): choose another path with --socket\.", message), err


def proof_of(served: Process, nonce: bytes, **headers: str) -> dict[str, Any]:
    status, message = served.ask("POST", PATH, {"nonce": nonce.hex()}, **headers)
    assert status == 200, message
    return dict(json.loads(message))


def test_it_proves_itself_at_its_own_address_and_needs_no_token_for_that(state: Path, token_file: Path) -> None:
    with serving(state, "--token-file", token_file) as served:
        nonce, peer = new_nonce(), ("127.0.0.1", served.port)
        message = proof_of(served, nonce)
        for keys in (Keys((state / "codespec" / "secret").read_bytes()), Keys(None, stretched(TOKEN))):
            assert is_proven(message, keys, nonce, peer)
            assert not is_proven(message, keys, new_nonce(), peer)
            assert not is_proven(message, keys, nonce, ("127.0.0.1", served.port + 1))
        assert proof_of(served, nonce, Authorization="Bearer wrong") == message
        assert served.ask("GET", "/v1/codespec/stats")[0] == 401


def test_without_a_token_there_is_no_proof_by_one(state: Path) -> None:
    with serving(state) as served:
        nonce = new_nonce()
        message = proof_of(served, nonce)
        assert message["by_token"] is None and message["at"] == f"127.0.0.1:{served.port}"
        assert is_proven(message, Keys((state / "codespec" / "secret").read_bytes()), nonce, ("127.0.0.1", served.port))


def test_strangers_get_short_answers_to_short_questions(state: Path, token_file: Path) -> None:
    with serving(state, "--token-file", token_file) as served:
        for body, status, field in (
            ({"nonce": "0" * 64, "more": 1}, 400, "more"),
            ({"nonce": "0" * 62}, 400, "nonce"),
            ({"nonce": "G" * 64}, 400, "nonce"),
            ({"nonce": "0" * 65}, 400, "nonce"),
            ({}, 400, "nonce"),
            ({"nonce": "0" * 64, "x": "y" * 256}, 413, "body"),
            (b"{", 400, "body"),
        ):
            found, message = served.ask("POST", PATH, body)
            assert (found, json.loads(message)["error"]["field"]) == (status, field), message
        asked = {"nonce": "0" * 64}
        assert served.ask("POST", PATH, asked, Host="evil.example")[0] == 403
        assert served.ask("POST", PATH, asked, Origin="https://evil.example")[0] == 403
        assert served.ask("GET", PATH)[0] in (401, 405)
