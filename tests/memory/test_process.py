"""A real daemon keeps what its user accepted: for them alone, in files that only they read, until it is deleted."""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from codespec.memory.accepted import texts_store
from codespec.memory.places import Place, read_places
from codespec.memory.store import Kept
from tests.cli.conftest import Models, models  # noqa: F401
from tests.cli.processes import SECONDS, TOKEN, run, user_environment
from tests.config.test_secret_files import SECRETS
from tests.server.daemons import wait_for
from tests.server.test_process import Process, daemon

OUTCOME, COMPLETE = "/v1/codespec/outcome", "/v1/codespec/complete"
OTHER_USER = 12345  # needs not exist
WORDS = "\n".join(f"line_{number}_of_it = accepted_{number} and for good" for number in range(40))
BEGINNINGS = (
    f"line_{number}_of_it = acc" for number in cycle(range(40))
)  # no two alike: completions are looked up too


def outcome(text: str = WORDS, path: str = "/shop/src/a.py", **more: str) -> dict[str, str]:
    return {"root": "/shop", "path": path, "language": "python", "lead": "# ", "text": text, "following": "\n", **more}


@contextmanager
def started(models: Models, state: Path, *words: str) -> Iterator[Process]:  # noqa: F811
    homes = user_environment(XDG_STATE_HOME=str(state.parent), XDG_CACHE_HOME=str(state.parent / "cache"))
    flags = ("--threads", "1", "--audit-every", "0", "--no-prefetch", "--proposers", "suffix", *words)
    with daemon(*models.flags, *flags, env=homes) as served:
        served.until_ready()
        yield served


def kept() -> list[Kept]:
    return texts_store().read_all([])


def keeps(count: int) -> bool:
    return wait_for(lambda: sum(len(each.entries) for each in kept()) == count, 10)


def drafts(served: Process, path: str = "/shop/src/b.py", user: int = 0, **headers: str) -> float:
    """How many drafts a completion takes from the memory."""
    before = drafted(served, **headers)
    body = {"prefix": next(BEGINNINGS), "max_tokens": 8, "shape": "raw", "path": path}
    assert ask(served, COMPLETE, body, user, **headers)[0] == 200
    return drafted(served, **headers) - before


def drafted(served: Process, **headers: str) -> float:
    families = json.loads(served.ask("GET", "/v1/codespec/stats", **headers)[1])["families"]
    return next(one["samples"][0]["value"] for one in families if one["name"] == "codespec:memory_drafts_total")


def ask(served: Process, path: str, body: object, user: int = 0, **headers: str) -> tuple[int, bytes]:
    """A POST, by another user where one is given, which only root can be."""
    if not user:
        return served.ask("POST", path, body, **headers)
    own = os.geteuid()
    os.seteuid(user)
    try:
        connection = socket.create_connection((served.host, served.port), timeout=SECONDS)
    finally:
        os.seteuid(own)
    client = http.client.HTTPConnection("localhost")
    client.sock = connection
    client.request("POST", path, json.dumps(body).encode())
    reply = client.getresponse()
    try:
        return reply.status, reply.read()
    finally:
        client.close()


def until_drafts(served: Process, **headers: str) -> bool:
    """It is loaded while nobody waits."""
    return wait_for(lambda: drafts(served, **headers) > 0, 20)


def test_from_the_report_to_the_draft_and_to_its_deletion(models: Models, state: Path) -> None:  # noqa: F811
    with started(models, state) as served:
        assert json.loads(served.ask("GET", "/health")[1])["outcomes"] is True
        assert drafts(served) == 0
        assert json.loads(ask(served, OUTCOME, outcome())[1]) == {"kept": True}
        assert keeps(1) and kept()[0].entries == [f"# {WORDS}"]
        assert until_drafts(served)
        assert drafts(served, "/elsewhere/b.py") == 0
        files = [state / "memory", *(state / "memory").iterdir()]
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o700, 0o600}
        assert stat.S_IMODE(files[0].stat().st_mode) == 0o700
        listed = run("memory", "list", XDG_STATE_HOME=str(state.parent))
        assert "texts" in listed.stdout and "/shop" in listed.stdout
        assert run("memory", "clear", "/shop", XDG_STATE_HOME=str(state.parent)).returncode == 0
        assert drafts(served) == 0
        assert "for good" not in "".join(file.read_text() for file in (state / "memory").iterdir())
        assert ask(served, OUTCOME, outcome("another text altogether"))[0] == 200
        assert keeps(1)
        assert [drafts(served) for _ in range(3)] == [0, 0, 0], "what was deleted stays deleted"
        assert ask(served, OUTCOME, outcome())[0] == 200
        assert keeps(2)
    with started(models, state) as served:
        assert until_drafts(served)


def test_other_users_and_other_keys_neither_fill_it_nor_draw_from_it(models: Models, state: Path) -> None:  # noqa: F811
    with started(models, state) as served:
        ask(served, OUTCOME, outcome())
        assert keeps(1) and until_drafts(served)
        others: list[dict[str, Any]] = [{"Authorization": "Bearer another"}, {"Api_Key": "another"}]
        others += [{"user": OTHER_USER}] if os.geteuid() == 0 else []
        for other in others:
            assert drafts(served, **other) == 0
            status, said = ask(served, OUTCOME, outcome("of another client's"), **other)
            assert status == 403 and b"not the daemon's own user" in said
        assert json.loads(served.ask("GET", "/health", Api_Key="another")[1])["outcomes"] is False
        assert keeps(1)


def test_with_a_token_the_users_own_clients_bring_it(models: Models, state: Path, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "token").write_text(TOKEN)
    own = {"Authorization": f"Bearer {TOKEN}"}
    homes = user_environment(XDG_STATE_HOME=str(state.parent), XDG_CACHE_HOME=str(state.parent / "cache"))
    flags = ("--threads", "1", "--no-prefetch", "--proposers", "suffix", "--token-file", str(tmp_path / "token"))
    with daemon(*models.flags, *flags, env=homes) as served:
        assert wait_for(lambda: served.ask("GET", "/health", **own)[0] == 200)
        assert ask(served, OUTCOME, outcome())[0] == 401
        assert ask(served, OUTCOME, outcome(), **own, Api_Key="another")[0] == 403
        assert ask(served, OUTCOME, outcome(), **own)[0] == 200
        assert keeps(1)
        assert until_drafts(served, **own)


def test_off_keeps_nothing_and_drafts_nothing(models: Models, state: Path) -> None:  # noqa: F811
    texts_store(1).add("/shop", f"# {WORDS}", [])
    before = [each.entries for each in kept()]
    with started(models, state, "--memory-mb", "0") as served:
        assert json.loads(served.ask("GET", "/health")[1])["outcomes"] is False
        assert json.loads(ask(served, OUTCOME, outcome("new"))[1]) == {"kept": False}
        assert [drafts(served) for _ in range(3)] == [0, 0, 0]
        assert [each.entries for each in kept()] == before and not (state / "places").exists()


def test_secret_files_and_what_makes_no_sense_are_refused(models: Models, state: Path) -> None:  # noqa: F811
    with started(models, state, "--gather-places") as served:
        for name in SECRETS:
            status, said = ask(served, OUTCOME, outcome(path=f"/shop/{name}"))
            assert status == 400 and b"may hold secrets" in said, name
        wrong = [
            {"root": "shop"},
            {"root": "/else"},
            {"path": "/shop/../etc/x"},
            {"root": "/shop/src/a.py"},
            {"x": "y"},
        ]
        for change in [*wrong, {"text": 20_000 * "x"}, {"text": 3}]:
            assert ask(served, OUTCOME, {**outcome(), **change})[0] == 400, change
        assert kept() == [] and read_places([]) == []
        for name in ("a.py", "deep/er/b.py"):
            assert ask(served, OUTCOME, outcome(path=f"/shop/{name}"))[0] == 200, name


def test_places_are_gathered_only_if_wanted_and_stats_say_so(models: Models, state: Path) -> None:  # noqa: F811
    homes = {"XDG_STATE_HOME": str(state.parent)}
    with started(models, state) as served:
        ask(served, OUTCOME, outcome())
        assert keeps(1) and read_places([]) == []
        said = run("stats", "--url", f"http://127.0.0.1:{served.port}", **homes).stdout
        assert "gathering      off" in said and "memory         texts of 1 repositories" in said
    with started(models, state, "--gather-places", "--memory-mb", "0") as served:
        assert json.loads(served.ask("GET", "/health")[1])["outcomes"] is True
        ask(served, OUTCOME, outcome())
        assert wait_for(lambda: len(read_places([])) == 1, 10)
        assert read_places([]) == [Place("/shop", "src/a.py", "python", "# ", "\n", WORDS)]
        said = run("stats", "--url", f"http://127.0.0.1:{served.port}", **homes).stdout
        assert "gathering      on; places of 1 repositories" in said and "memory         off" in said
    assert "places" in run("memory", "list", **homes).stdout
    assert stat.S_IMODE((state / "places").stat().st_mode) == 0o700
    assert run("memory", "clear", **homes).stdout == "deleted: texts of 1 repository, places of 1 repository\n"
    assert read_places([]) == [] and run("memory", "list", **homes).stdout == "nothing is kept\n"


@pytest.mark.parametrize("words", [("memory",), ("memory", "clear", "a", "b")])
def test_a_command_that_is_not_whole_deletes_nothing(state: Path, words: tuple[str, ...]) -> None:
    texts_store(1).add("/shop", WORDS, [])
    assert run(*words, XDG_STATE_HOME=str(state.parent)).returncode == 2
    assert len(kept()) == 1
