"""A benchmark that is ended by a signal stops the programs that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")

SERVER = f"""#!{sys.executable}
import os, sys, time
open(os.environ["NOTED"], "w").write(str(os.getpid()))
if "loads" in sys.argv:
    time.sleep(600)
from http.server import BaseHTTPRequestHandler, HTTPServer

class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Healthy).serve_forever()
"""
BENCH = """
import signal, sys, time
from pathlib import Path
from codespec_lab.bench.harness import leaving_on_signals
from codespec_lab.bench.llama_server import LlamaServer, Program
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
with leaving_on_signals():
    program, flags = Program(Path(sys.argv[1]), ""), sys.argv[2:]
    with LlamaServer(program, Path("m.gguf"), threads=1, slots=1, room=8, flags=flags):
        Path(sys.argv[1]).with_name("ready").touch()
        time.sleep(600)
"""


@pytest.mark.parametrize("flags", [[], ["loads"]], ids=["answers", "still loads"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_its_llama_server_ends_with_it(tmp_path: Path, number: signal.Signals, flags: list[str]) -> None:
    server, noted = tmp_path / "llama-server", tmp_path / "pid"
    server.write_text(SERVER, encoding="utf-8")
    server.chmod(0o755)
    words = [sys.executable, "-c", BENCH, str(server), *flags]
    with subprocess.Popen(words, env={**os.environ, "NOTED": str(noted)}) as bench:
        while not (noted.exists() and noted.read_text() if flags else (tmp_path / "ready").exists()):
            assert bench.poll() is None
            time.sleep(0.01)
        bench.send_signal(number)
        assert bench.wait() == 128 + number
    with pytest.raises(ProcessLookupError):
        os.kill(int(noted.read_text()), 0)
