"""`codespec stats` shows and, on request, deletes what engines stored, and shows a running daemon's counters."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from codespec.cli.stats import Figures, render
from codespec.speculation.acceptance_model import AcceptanceModel, Learned
from codespec.user_folders import read_secret
from tests.cli.conftest import Command, Models
from tests.cli.processes import TOKEN
from tests.server.conftest import toy  # noqa: F401
from tests.server.daemons import Served, serving
from tests.server.fakes import FakeEngine
from tests.server.test_jobs import PATH, body
from tests.server.test_metrics import Scrape


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own = tmp_path / "state" / "codespec"
    own.mkdir(mode=0o700, parents=True)
    (own / "secret").touch(mode=0o600)
    (own / "secret").write_bytes(read_secret())  # the secret of daemons that several tests share
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("CODESPEC_SERVE_PORT", str(free.getsockname()[1]))
    return tmp_path / "state" / "codespec" / "acceptance"


def test_shows_and_forgets(command: Command) -> None:
    assert command("stats").out == "nothing has been learned yet\n"
    survival = AcceptanceModel()
    for _ in range(50):
        survival.learn("suffix", "comment", [0.9], 1)
    Learned("some-pair", []).save(survival)
    table = command("stats").out.splitlines()
    assert table[0] == "pair some-pair" and len(table) == 4
    assert [line.split()[:2] for line in table[2:]] == [["suffix", "any"], ["suffix", "comment"]]
    rows = json.loads(command("stats", "--json").out)["learned"]
    assert rows[1]["judged"] > 40 and rows[1]["chance"] > 0.8
    assert command("stats", "--reset").out == "forgotten: 1 pair(s)\n"
    assert json.loads(command("stats", "--reset", "--json").out) == {"forgotten": 0}
    assert command("stats").out == "nothing has been learned yet\n"


def test_a_completion_learns_unless_told_otherwise(
    command: Command, models: Models, source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["complete", f"{source}:11:8", *models.flags, "--policy", "cost", "--max-tokens", "12", "--shape", "raw"]
    assert command(*words, "--no-learn").code == 0 and not folder.exists()
    done = command(*words)
    assert (done.code, done.err) == (0, "") and len(list(folder.iterdir())) == 1
    assert command("stats").out.startswith("pair ")


def test_a_broken_file_is_reported(command: Command, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "x.json").write_text("{")
    done = command("stats")
    assert done.code == 0 and "can't be read" in done.err.splitlines()[1] and done.err.count("\n") == 2


def test_a_daemon_that_is_not_there_is_one_sentence(command: Command) -> None:
    done = command("stats", "--url", "http://127.0.0.1:1")
    assert (done.code, done.out) == (0, "nothing has been learned yet\n")
    assert done.err == "codespec: No daemon answers at http://127.0.0.1:1: `codespec serve` starts one.\n"
    assert json.loads(command("stats", "--json").out) == {"daemon": None, "families": [], "learned": []}


@pytest.mark.parametrize(
    "url", ["https://x:1", "127.0.0.1:1", "http://x", "http://x:70000", "http://u@x:1/", "http://x:1/y"]
)
def test_an_address_that_is_none(url: str, command: Command) -> None:
    command("stats", "--url", url).check_mistake("http://HOST:PORT")


def test_the_table_is_the_daemons(toy: Served, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    for number in range(3):
        values = {"prefix": f"def f{number}(x):\n    return ", "max_tokens": 12, "path": "a.py", "shape": "raw"}
        assert toy.post(PATH, values).status == 200
    assert toy.idle()
    found = Scrape(toy)
    monkeypatch.setenv("CODESPEC_SERVE_PORT", str(toy.port))
    told = json.loads(command("stats", "--json").out)
    assert told["daemon"] == {
        "url": f"http://127.0.0.1:{toy.port}",
        "version": told["daemon"]["version"],
        "state": "ready",
        "reason": "",
        "model": "toy",
        "mode": "exact",
        "kernel": "",
        "variance": "",
        "notes": [],
        "context": 512,
        "prompt_budget": 512,
        "edit_format": "",
    }
    figures = Figures(told)
    for name in ("spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total", "rounds_total"):
        assert figures.sum(name) == found.sum(name) > 0
    table = command("stats").out.splitlines()
    assert table[0].startswith(f"daemon http://127.0.0.1:{toy.port}: codespec ")
    assert table[-1] == "nothing has been learned yet"
    assert render(told) == table[2 : 2 + len(render(told))]


def test_which_kernel_multiplies(command: Command) -> None:
    for kernel in ("", "native (avx2)"):
        engine = FakeEngine()
        engine.kernel = kernel
        with serving(engine) as served:
            printed = command("stats", "--url", f"http://127.0.0.1:{served.port}").out
            assert ("kernel: native (avx2)" in printed.splitlines()) == ("kernel: " in printed) == bool(kernel)
            assert served.ask("GET", "/health").json.get("kernel", "") == kernel


def test_what_the_table_says_of_sums() -> None:
    samples = [
        {"name": "codespec:goodput_seconds_total", "labels": {}, "value": 2.0},
        {"name": "codespec:goodput_plain_seconds_total", "labels": {}, "value": 5.0},
        {"name": "codespec:goodput_tokens_total", "labels": {}, "value": 1200},
        *(
            {"name": "codespec:x_bucket", "labels": {"le": le}, "value": n}
            for le, n in (("0.1", 5), ("2", 9), ("+Inf", 10))
        ),
    ]
    told = {"families": [{"samples": samples}]}
    assert "against plain  2.50 × (1,200 tokens in 2.0 s; plain 5.0 s by the cost table)" in render(told)
    figures = Figures(told)
    assert [figures.quantile("x", share) for share in (0.5, 0.9, 0.99)] == [0.1, 2.0, float("inf")]
    assert figures.quantile("y", 0.5) is None


def test_a_reset_beside_a_daemon_says_what_it_does_not_reset(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(FakeEngine()) as served:
        served.post(PATH, body("x"))
        done = command("stats", "--reset", "--url", f"http://127.0.0.1:{served.port}")
        assert (
            done.out == "codespec: forgotten: 0 pair(s)\n".removeprefix("codespec: ")
            and "stop it, then use --reset again" in done.err
        )
        assert Scrape(served).sum("requests_total") == 1


def test_a_token_is_asked_for_and_read(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    with serving(FakeEngine(), token=TOKEN) as served:
        url = f"http://127.0.0.1:{served.port}"
        done = command("stats", "--url", url)
        assert done.code == 0 and "--token-file" in done.err and done.err.count("\n") == 1
        assert command("stats", "--url", url, "--token-file", file).out.startswith(f"daemon {url}")
    command("stats", "--token-file", tmp_path / "none").check_mistake("can't be read")


@pytest.fixture(
    params=[b"", b"hello\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"], ids=["silent", "greets", "web"]
)
def stranger(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a foreign program on a port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                if request.param:
                    connection.recv(4096)
                    connection.sendall(request.param)
                else:
                    over.wait(20)

        over, thread = threading.Event(), threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        over.set()
        thread.join()


def test_somebody_else_at_the_address(stranger: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespec.cli.options.SECONDS", 0.5)
    done = command("stats", "--url", stranger)
    assert (done.code, done.out) == (0, "nothing has been learned yet\n")
    assert stranger in done.err and "check --url" in done.err and done.err.count("\n") == 1
