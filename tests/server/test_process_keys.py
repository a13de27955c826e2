"""A team's daemon as its owner starts it: keys by the command, clients that verify it by their key, usage."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.conftest import Models
from tests.cli.conftest import light_models as models  # noqa: F401
from tests.cli.processes import TOKEN, user_environment
from tests.server.daemons import wait_for
from tests.server.forked import run_forked as run
from tests.server.test_process import Process, daemon

PATH = "/v1/codespec/complete"
BODY = {"prefix": "def f(x):\n", "max_tokens": 6, "shape": "raw"}


@contextmanager
def shared(models: Models, folder: Path, *words: str | Path) -> Iterator[Process]:  # noqa: F811
    (folder / "token").write_text(TOKEN)
    homes = user_environment(XDG_STATE_HOME=str(folder / "state"))
    flags = [*models.flags, "--threads", "1", "--no-prefetch", "--socket", "none"]
    files = ["--token-file", folder / "token", "--keys", folder / "keys"]
    with daemon(*flags, *files, *words, env=homes) as served:
        assert wait_for(lambda: served.ask("GET", "/ready")[0] == 200)
        yield served


def add(folder: Path, name: str, *words: str) -> str:
    done = run("keys", "add", name, "--keys", folder / "keys", *words)
    assert done.returncode == 0 and "save the key now" in done.stderr, done.stderr
    return done.stdout.strip()


def post(served: Process, key: str, **fields: object) -> int:
    return served.ask("POST", PATH, {**BODY, **fields}, Authorization=f"Bearer {key}")[0]


def test_a_teams_day(models: Models, tmp_path: Path) -> None:  # noqa: F811
    ana, bo = add(tmp_path, "ana"), add(tmp_path, "bo")
    listed = run("keys", "list", "--keys", tmp_path / "keys").stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["ana", "bo"]
    with shared(models, tmp_path) as served:
        url = f"http://127.0.0.1:{served.port}"
        assert post(served, ana) == post(served, bo) == post(served, TOKEN) == 200
        theirs = {"XDG_STATE_HOME": str(tmp_path / "ana"), "XDG_CACHE_HOME": str(tmp_path / "ana")}
        of_ana = run("stats", "--by", "key", "--url", url, CODESPEC_SERVE_TOKEN=ana, **theirs)
        assert of_ana.returncode == 0 and [line.split()[0] for line in of_ana.stdout.splitlines()] == ["key", "ana"]
        stranger = run("stats", "--url", url, CODESPEC_SERVE_TOKEN=f"csk-{'x' * 43}", **theirs)
        assert "can't prove that it is your daemon" in stranger.stderr
        of_owner = run("stats", "--by", "key", "--url", url, CODESPEC_SERVE_TOKEN=TOKEN, **theirs)
        assert {"owner", "ana", "bo"} < {line.split()[0] for line in of_owner.stdout.splitlines()}
        assert run("keys", "revoke", "ana", "--keys", tmp_path / "keys").stdout == "revoked: ana\n"
        assert wait_for(lambda: post(served, ana) == 401)
        fresh = add(tmp_path, "cy")
        served.process.send_signal(signal.SIGHUP)
        assert wait_for(lambda: post(served, fresh) == 200)
        code, _, err = served.end(signal.SIGTERM)
    assert code == 0 and "Traceback" not in err
    assert "def f" not in err and not [key for key in (ana, bo, fresh, TOKEN) if key in err]


def test_what_can_not_start_is_one_sentence(models: Models, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "keys").write_text("{\n")
    (tmp_path / "keys").chmod(0o600)
    for words, message in (
        (("--keys", tmp_path / "keys"), "Line 1 of"),
        (("--keys", tmp_path / "none"), "codespec keys add"),
        (("--metrics-token-file", tmp_path / "none"), "can't be read"),
    ):
        done = run("serve", "--port", "0", *models.flags, *words)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1) and message in done.stderr, done.stderr
    for words in (("add", "a b"), ("revoke", "none"), ("list",)):
        done = run("keys", *words, "--keys", tmp_path / "keys")
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "add --keys FILE" in run("keys", "list", XDG_CONFIG_HOME=str(tmp_path)).stderr
