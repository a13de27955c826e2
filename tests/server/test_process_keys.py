"""A team's daemon as its owner starts it: keys by the command, clients that verify it by their key, usage, the log."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
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
    files = ["--token-file", folder / "token", "--keys", folder / "keys", "--audit-log", folder / "log"]
    with daemon(*flags, *files, *words, env=homes) as served:
        assert wait_for(lambda: served.ask("GET", "/ready")[0] == 200)
        yield served


def add(folder: Path, name: str, *words: str) -> str:
    done = run("keys", "add", name, "--keys", folder / "keys", *words)
    assert done.returncode == 0 and "note the key now" in done.stderr, done.stderr
    return done.stdout.strip()


def post(served: Process, key: str, **fields: object) -> int:
    return served.ask("POST", PATH, {**BODY, **fields}, Authorization=f"Bearer {key}")[0]


def test_a_teams_day(models: Models, tmp_path: Path) -> None:  # noqa: F811
    ana, bo = add(tmp_path, "ana", "--requests-per-minute", "30"), add(tmp_path, "bo")
    listed = run("keys", "list", "--keys", tmp_path / "keys").stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["ana", "bo"] and "30 requests per minute" in listed[0]
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
        (tmp_path / "log").rename(tmp_path / "log.1")
        served.process.send_signal(signal.SIGHUP)
        assert wait_for((tmp_path / "log").exists) and post(served, bo) == 200
        code, _, err = served.end(signal.SIGTERM)
    assert code == 0 and "Traceback" not in err
    lines = [json.loads(line) for name in ("log.1", "log") for line in (tmp_path / name).read_text().splitlines()]
    done = [(line["key"], line["tokens"]) for line in lines if line["route"] == PATH and line["status"] == 200]
    assert done[:3] + done[-2:] == [("ana", 6), ("bo", 6), ("owner", 6), ("cy", 6), ("bo", 6)]
    assert {name for name, _ in done[3:-2]} <= {"ana"}, "until the daemon noticed"
    written = (tmp_path / "log.1").read_text() + err
    assert "def f" not in written and not [key for key in (ana, bo, fresh, TOKEN) if key in written]


def test_a_burst_of_one_key_delays_no_other(models: Models, tmp_path: Path) -> None:  # noqa: F811
    """Of 200 requests of ana's at once, the queue takes 40 at a time; bo's, the last, is answered with the first.

    The daemon's log gives the order, as 200 clients may be slower to connect than the daemon is to answer. About 16 of
    ana's end before bo's, and 56 if the queue knows no clients.
    """
    ana, bo = add(tmp_path, "ana"), add(tmp_path, "bo")
    long = {"max_tokens": 120, "speculate": False}  # bo's too: a shorter one would go first for its length
    with shared(models, tmp_path, "--queue", "40", "--max-batch", "4") as served:
        ended: list[int] = []

        def send(number: int) -> None:
            body = {**BODY, **long, "prefix": f"# {number}\n", "document": f"{number}"}
            ended.append(served.ask("POST", PATH, body, Authorization=f"Bearer {ana}")[0])

        burst = [threading.Thread(target=send, args=(number,)) for number in range(200)]
        for one in burst:
            one.start()
        assert wait_for(lambda: ended.count(429) >= 20)
        assert post(served, bo, **long) == 200
        for one in burst:
            one.join()
        assert ended.count(200) + ended.count(429) == 200 and ended.count(200) >= 40
        served.end(signal.SIGTERM)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    at = {name: [line for line in lines if line["key"] == name and line["status"] == 200] for name in ("ana", "bo")}
    (of_bo,) = at["bo"]
    end = datetime.fromisoformat(of_bo["time"])
    begin = end - timedelta(milliseconds=of_bo["ms"])
    earlier = [line for line in at["ana"] if begin < datetime.fromisoformat(line["time"]) < end]
    assert len(earlier) <= 32, f"{len(earlier)} of ana's ended first"


def test_what_can_not_start_is_one_sentence(models: Models, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "keys").write_text("{\n")
    (tmp_path / "keys").chmod(0o600)
    for words, said in (
        (("--keys", tmp_path / "keys"), "Line 1 of"),
        (("--keys", tmp_path / "none"), "codespec keys add"),
        (("--audit-log", tmp_path), "can't be opened"),
        (("--metrics-token-file", tmp_path / "none"), "can't be read"),
    ):
        done = run("serve", "--port", "0", *models.flags, *words)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1) and said in done.stderr, done.stderr
    for words in (("add", "a b"), ("revoke", "none"), ("list",)):
        done = run("keys", *words, "--keys", tmp_path / "keys")
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "give --keys FILE" in run("keys", "list", XDG_CONFIG_HOME=str(tmp_path)).stderr


def test_a_full_disk_stops_no_answer(models: Models, tmp_path: Path) -> None:  # noqa: F811
    """The audit log can't grow, as on a full disk."""
    import resource

    add(tmp_path, "ana")
    (tmp_path / "log").write_bytes(b"x" * 4096)

    with shared(models, tmp_path) as served:
        resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (4096, 4096))
        for _ in range(3):
            assert post(served, TOKEN) == 200
        status, data = served.ask("GET", "/health", Authorization=f"Bearer {TOKEN}")
        assert status == 200 and "audit log can't be written" in json.loads(data)["warning"], data
