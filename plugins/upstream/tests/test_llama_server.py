"""The daemon in front of llama-server: TEST_LLAMA_CPP names its folder, TEST_LLAMA_MODEL a Qwen-Coder .gguf file."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugins.upstream.tests.test_process import served
from tests.cli.processes import run

FOLDER, MODEL = (os.environ.get(name, "") for name in ("TEST_LLAMA_CPP", "TEST_LLAMA_MODEL"))
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not (FOLDER and MODEL), reason="TEST_LLAMA_CPP or TEST_LLAMA_MODEL is not set"),
]
PLACE = {"prefix": "def add(first, second):\n    return ", "suffix": "\n\n\nprint(add(1, 2))\n", "path": "a.py"}


@pytest.fixture
def llama() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [f"{FOLDER}/llama-server", "-m", MODEL, "--host", "127.0.0.1", "--port", str(port), "-c", "4096"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(words, env={**os.environ, "LD_LIBRARY_PATH": FOLDER}, **quiet)
    yield f"http://127.0.0.1:{port}"
    server.kill()
    server.wait()


def test_completes_and_cancels(llama: str, tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(PLACE["prefix"] + PLACE["suffix"])
    with served("--upstream", llama) as daemon:
        status, body = daemon.ask("POST", "/v1/codespec/complete", {**PLACE, "shape": "line"})
        text = "".join(json.loads(line[6:]).get("text", "") for line in body.decode().splitlines() if "data: " in line)
        assert status == 200 and text == "first + second"
        done = run("complete", f"{file}:2:12", CODESPEC_SERVE_PORT=str(daemon.port))
        assert done.stdout.strip() == "first + second", done.stderr
        found = run("doctor", "--upstream", llama, CODESPEC_SERVE_PORT=str(daemon.port))
        assert "by the qwen template" in found.stdout, found.stdout
        connection = daemon.open("/v1/codespec/complete", {**PLACE, "shape": "raw", "max_tokens": 2000})
        connection.getresponse().read(1)
        connection.close()
        begun = time.monotonic()
        assert daemon.ask("POST", "/v1/codespec/complete", {**PLACE, "shape": "line"})[0] == 200
        assert time.monotonic() - begun < 60 and daemon.num_open() == 0
