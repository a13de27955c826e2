"""Access control and context filtering of `codespec serve` as a user starts it: each guard is active."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import TOKEN, user_environment
from tests.server.test_process import Process, daemon

PATH = "/v1/codespec/complete"
ASKED = (
    ("GET", "/v1/codespec/stats", None),
    ("POST", PATH, {"prefix": "x"}),
    ("POST", "/v1/completions", {"prompt": "x"}),
)
EVIL = "https://evil.example"


def refusals(served: Process, **headers: str) -> set[tuple[int, str]]:
    """Return status and field of each endpoint's rejection; a daemon that is still loading is not a rejection."""
    found = set()
    for method, path, body in ASKED:
        status, message = served.ask(method, path, body, **headers)
        found |= set() if status in (200, 503) else {(status, json.loads(message)["error"]["field"])}
    return found


@pytest.mark.parametrize("by_file", [True, False], ids=["file", "variable"])
def test_the_token_that_serve_is_given_is_asked_for(by_file: bool, token_file: Path) -> None:
    words = ["--token-file", token_file] if by_file else []
    environment = {} if by_file else {"CODESPEC_SERVE_TOKEN": TOKEN}
    with daemon(*words, env=user_environment(**environment)) as served:
        assert refusals(served) == {(401, "Authorization")}
        assert refusals(served, Authorization=f"Bearer {TOKEN[:-1]}") == {(401, "Authorization")}
        assert refusals(served, Authorization=f"Bearer {TOKEN}") == set()


def test_a_name_that_is_pointed_here_and_a_foreign_page_are_refused() -> None:
    """On its own address, which the guard must know to answer under it."""
    with daemon("--host", "127.0.0.2") as served:
        own = f"127.0.0.2:{served.port}"
        for name in (own, "localhost", "127.0.0.1:1"):
            assert refusals(served, Host=name) == set()
        for name in ("evil.example", f"evil.example:{served.port}", "192.168.0.7", "127.0.0.2.evil.example"):
            assert refusals(served, Host=name) == {(403, "Host")}
        assert refusals(served, Origin=f"http://{own}") == set()
        for page in (EVIL, "null", "http://127.0.0.2:1"):
            assert refusals(served, Origin=page) == {(403, "Origin")}


def test_foreign_pages_are_refused_where_others_reach_it(token_file: Path) -> None:
    """It listens on all addresses, so it answers under any name; a foreign page is rejected even with the token."""
    with daemon("--host", "0.0.0.0", "--token-file", token_file) as served:
        with_token = {"Authorization": f"Bearer {TOKEN}"}
        assert refusals(served, Host="build.example:1", **with_token) == set()
        assert refusals(served, Origin=EVIL, **with_token) == {(403, "Origin")}
        assert refusals(served, Host="build.example") == {(401, "Authorization")}


def ready_made(*files: str) -> str:
    """Return a prompt as some clients build it, with other files in front."""
    others = "".join(f"<|file_sep|>{name}\nKEY = 12345\n" for name in files)
    return f"{others}<|fim_prefix|>def f(<|fim_suffix|>):\n<|fim_middle|>"


@pytest.mark.parametrize("path", ["/v1/completions", "/completion", "/api/generate"])
def test_secrets_in_a_ready_made_prompt_are_left_out(path: str, real: Process) -> None:
    """The client is told, and the model reads the same as without them."""
    without, message = read(real, path, "a.py")
    with_secret, told = read(real, path, "a.py", "conf/.env")
    with_other, _ = read(real, path, "a.py", "conf/b.py")
    assert message == [] and told == ["1 of 2 other files may hold secrets and were left out"]
    assert without == with_secret < with_other


def read(served: Process, path: str, *files: str) -> tuple[int, list[str]]:
    """Return the number of prompt tokens and the notes to the client."""
    asked: dict[str, Any] = {"prompt": ready_made(*files), "max_tokens": 1, "n_predict": 1, "stream": False}
    status, message = served.ask("POST", path, {**asked, "options": {"num_predict": 1}})
    reply = json.loads(message)
    assert status == 200, message
    counts = (
        reply.get("usage", reply).get(name) for name in ("prompt_tokens", "tokens_evaluated", "prompt_eval_count")
    )
    return next(count for count in counts if count is not None), reply.get("notes", [])
