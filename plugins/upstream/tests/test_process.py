"""`codespec serve --upstream` as a real process: no torch, one sentence for each fault, and the other commands."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from plugins.upstream.tests.servers import FakeServer, fake_server
from plugins.upstream.tests.test_daemon import PLACE, wait_for
from tests.cli.processes import start_python
from tests.lsp.test_process import ended, on_pipes, started
from tests.server.forked import run_forked as run
from tests.server.forked import start_forked as start
from tests.server.test_process import Process

# A process that can't import torch and the like, whatever is installed.
WITHOUT = """
import sys
for name in ("torch", "transformers", "numpy", "safetensors"):
    sys.modules[name] = None
from codespec.cli import main
raise SystemExit(main(sys.argv[1:]))
"""


@contextmanager
def served(*words: str, python: bool = False) -> Iterator[Process]:
    """Run a daemon until the end of the block."""
    flags = ("serve", "--port", "0", "--socket", "none", *words)
    process: Any = start_python("-c", WITHOUT, *flags) if python else start(*flags)
    with process:
        daemon = Process(process)
        daemon.until_ready()
        yield daemon
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_needs_neither_torch_nor_transformers(upstream: FakeServer) -> None:
    with served("--upstream", upstream.url, python=True) as daemon:
        status, body = daemon.ask("POST", "/v1/codespec/complete", PLACE)
        assert status == 200 and b'"text":"a' in body and b"event: done" in body


def test_complete_stats_and_doctor_use_it(upstream: FakeServer, tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("def add(a, b):\n    return \n\n\nprint(add(1, 2))\n")
    key = tmp_path / "key"
    key.write_text("k-1\n")
    with served("--upstream", upstream.url, "--upstream-token-file", str(key)) as daemon:
        here = {"CODESPEC_SERVE_PORT": str(daemon.port)}
        done = run("complete", f"{file}:2:12", **here)
        assert done.returncode == 0 and done.stdout.strip() == "a + b", done.stderr
        assert "another server writes" in done.stderr
        shown = run("complete", f"{file}:2:12", "--show-draft", **here)
        assert "a + b" in shown.stdout, shown.stderr
        stats = run("stats", **here).stdout
        assert f"upstream: {upstream.url}/v1, fills in by the qwen template, circuit closed" in stats
        assert re.search(r"^upstream +.*done", stats, re.MULTILINE), stats
        found = run("doctor", "--upstream", upstream.url, "--upstream-token-file", str(key), **here)
        assert found.returncode == 0, found.stdout + found.stderr
        for line in ("ok       upstream", "ok       fill-in       by the qwen template", "ms for one token"):
            assert line in found.stdout, found.stdout
    assert all(sent.headers["authorization"] == "Bearer k-1" for sent in upstream.requests)


def test_an_editor_gets_its_suggestions(upstream: FakeServer) -> None:
    """The language server over pipes, a daemon, and the server upstream, which gets the document's session id."""

    async def scenario(process: subprocess.Popen[bytes]) -> None:
        async with on_pipes(process) as client:
            await client.start(initializationOptions={"budgetMs": 60_000})
            client.open("def add(a, b):\n    return \n\n\nprint(add(1, 2))\n")
            assert await client.texts(1, 11) == ["    return a + b"]
            await client.shut_down()
            await ended(process)

    with served("--upstream", upstream.url) as daemon:
        with started("--daemon", f"http://127.0.0.1:{daemon.port}") as process:
            asyncio.run(scenario(process))
        stats = run("stats", CODESPEC_SERVE_PORT=str(daemon.port)).stdout
        assert f"upstream: {upstream.url}/v1" in stats, stats
    written = [sent for sent in upstream.streams if "return " in str(sent.body["prompt"])]
    assert written and all(len(sent.headers["x-session-id"]) == 32 for sent in written)


def test_faults_are_one_sentence(upstream: FakeServer, tmp_path: Path) -> None:
    upstream.key = "k-123"
    for words, message in (
        (("--upstream", upstream.url, "--model", "starter"), "--model can't be used with an upstream server"),
        (("--upstream", upstream.url, "--target", "a", "--drafter", "b"), "--target and --drafter can't be used with"),
        (("--upstream", "ftp://x"), "upstream can't be used: write http://HOST:PORT"),
        (("--upstream", "http://user:key@127.0.0.1"), "upstream can't be used"),
        (("--upstream", upstream.url, "--upstream-token-file", str(tmp_path / "no")), "can't be read"),
        (
            ("--upstream", upstream.url),
            "The upstream server refuses the key (status 401): check --upstream-token-file.",
        ),
    ):
        ended = run("serve", "--port", "0", "--socket", "none", *words)
        assert ended.returncode == 2 and message in ended.stderr, ended.stderr
        assert "Traceback" not in ended.stderr and len(ended.stderr.splitlines()) == 1


def test_a_configured_model_is_named(upstream: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'target = "a/b"\ndrafter = "none"\n[serve]\nupstream = "{upstream.url}"\n')
    monkeypatch.setenv("CODESPEC_MODEL", "starter")
    process = start("serve", "--port", "0", "--socket", "none", "--config", file)
    with process:
        Process(process).until_ready()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    begin = f"codespec: {upstream.url} has its own model: remove"
    assert err.decode().splitlines()[:2] == [
        f"{begin} target and drafter from {file}, or the upstream.",
        f"{begin} model from the environment, or the upstream.",
    ]


def test_doctor_says_what_is_wrong() -> None:
    with fake_server(models=[{"id": "mystery"}]) as server:
        found = run("doctor", "--upstream", server.url, "--url", "http://127.0.0.1:9")
        assert "warning  fill-in" in found.stdout and found.returncode == 0
        server.kill()
        found = run("doctor", "--upstream", server.url, "--url", "http://127.0.0.1:9")
        assert "failed   upstream" in found.stdout and "can't be reached" in found.stdout and found.returncode == 1
        server.listen()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_open_stream_ends_before_the_daemon(upstream: FakeServer) -> None:
    upstream.answer, upstream.pause = "word " * 20, 0.05
    process = start("serve", "--port", "0", "--socket", "none", "--upstream", upstream.url)
    with process:
        daemon = Process(process)
        daemon.until_ready()
        connection = daemon.open("/v1/codespec/complete", {**PLACE, "shape": "raw"})
        assert wait_for(lambda: upstream.streams)
        process.send_signal(signal.SIGTERM)
        assert b"event: done" in connection.getresponse().read()
        connection.close()
        assert process.wait(20) == 0
