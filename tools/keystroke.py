"""`python -m tools.keystroke`: count the modules on the path of one keystroke, in language server and daemon.

A module counts if one of its functions runs between an edit and its answer, for one key in a warm document with no
matching cached completion. Both real processes run under `sys.setprofile`; signals start and end the count.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"codespec": ROOT / "codespec", "codespec_lsp": ROOT / "lsp", "codespec_grammars": ROOT / "grammars"}
TEXT = ROOT / "docs" / "example.py"
URI = TEXT.as_uri()
LINE, COLUMN, TYPED = 30, 14, " sx"  # after `return`, where no cached completion matches the last key
SECONDS = 120.0


def trace(out: str) -> None:
    """Run codespec under a profile: SIGUSR2 starts counting modules, SIGUSR1 writes them to a file."""
    seen: set[str] = set()
    counting = [False]

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if counting[0] and event == "call":
            seen.add(frame.f_code.co_filename)

    def write(*_: Any) -> None:
        counting[0] = False
        Path(out).write_text(json.dumps(sorted(seen)), encoding="utf-8")

    signal.signal(signal.SIGUSR2, lambda *_: counting.__setitem__(0, True))
    signal.signal(signal.SIGUSR1, write)
    threading.setprofile(profile)
    sys.setprofile(profile)
    from codespec.cli import main as run

    sys.exit(run())


def start(folder: Path, name: str, *words: str, pipe: int | None = None) -> subprocess.Popen[bytes]:
    """Start a process under the profile, with its own folders."""
    command = [sys.executable, "-m", "tools.keystroke", str(folder / f"{name}.json"), name, *words]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder), "CODESPEC_MODEL": "starter", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe)


class Editor:
    """Client that types into one document and ignores all other messages of the server."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin and process.stdout
        self._in, self._out = process.stdin, process.stdout
        self._number = 0
        self.version = 1

    def send(self, method: str, params: Any, number: int | None = None) -> None:
        """Send a notification, or a request if `number` is given."""
        message = {"jsonrpc": "2.0", "method": method, "params": params, **({"id": number} if number else {})}
        body = json.dumps(message).encode()
        self._in.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self._in.flush()

    def ask(self, method: str, params: Any) -> Any:
        """Send a request and return its result."""
        self._number += 1
        self.send(method, params, self._number)
        while True:
            reply = self._read()
            if reply.get("id") == self._number and "method" not in reply:
                return reply["result"]

    def type(self, line: int, column: int, key: str) -> Any:
        """Type one key and return the shown completions."""
        self.version += 1
        place = {"line": line, "character": column}
        change = {"range": {"start": place, "end": place}, "text": key}
        document = {"uri": URI, "version": self.version}
        self.send("textDocument/didChange", {"textDocument": document, "contentChanges": [change]})
        place = {"line": line, "character": column + len(key)}
        context = {"triggerKind": 2}
        asked = {"textDocument": {"uri": URI}, "position": place, "context": context}
        return self.ask("textDocument/inlineCompletion", asked)["items"]

    def _read(self) -> dict[str, Any]:
        length = 0
        while (line := self._out.readline()).strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return dict(json.loads(self._out.read(length)))


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_until_ready(url: str) -> None:
    """Return after the daemon has loaded its models."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
                if reply.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("keystroke: the daemon was not ready in time: look with `codespec doctor`.")


def count(folder: Path) -> dict[str, list[str]]:
    """Return the files in which a function ran, by process."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    daemon = start(folder, "serve", "--port", str(port), "--no-learn", "--no-prefetch")
    server = start(folder, "lsp", pipe=subprocess.PIPE)
    try:
        wait_until_ready(url)
        editor = Editor(server)
        settings = {"url": url, "budgetMs": int(SECONDS * 1000), "startDaemon": False}
        capabilities: dict[str, Any] = {"textDocument": {"inlineCompletion": {}}}
        editor.ask("initialize", {"capabilities": capabilities, "initializationOptions": settings})
        editor.send("initialized", {})
        document = {"uri": URI, "languageId": "python", "version": 1, "text": TEXT.read_text(encoding="utf-8")}
        editor.send("textDocument/didOpen", {"textDocument": document})
        for number, key in enumerate(TYPED[:-1]):
            editor.type(LINE, COLUMN + number, key)
        both = {"lsp": server, "serve": daemon}
        time.sleep(2)  # wait for work after the answer to finish
        _signal_all(both, signal.SIGUSR2)
        shown = editor.type(LINE, COLUMN + len(TYPED) - 1, TYPED[-1])
        _signal_all(both, signal.SIGUSR1)
        print(f"shown: {shown[0]['insertText'].strip() if shown else 'nothing'}", file=sys.stderr)
        return {name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in both}
    finally:
        server.kill()
        daemon.kill()


def _signal_all(processes: dict[str, subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for process in processes.values():
        process.send_signal(number)
    time.sleep(1)  # signals are handled between two bytecode instructions of the main thread


def room_of(file: str) -> str:
    """Return the part of codespec that a file belongs to, or "" for other files."""
    for name, folder in PACKAGES.items():
        if Path(file).is_relative_to(folder):
            parts = Path(file).relative_to(folder).parts
            return f"{name}/{parts[0]}" if name == "codespec" and len(parts) > 1 else name
    return ""


def main() -> int:
    """Count the modules and print a line for each process, with its parts."""
    if len(sys.argv) > 1:
        trace(sys.argv.pop(1))
    with tempfile.TemporaryDirectory(prefix="codespec-keystroke-") as folder:
        found = {name: [file for file in files if room_of(file)] for name, files in count(Path(folder)).items()}
    for name, files in found.items():
        rooms = ", ".join(f"{room} {number}" for room, number in Counter(map(room_of, files)).most_common())
        print(f"codespec {name}: {len(files)} modules ({rooms})")
    print(f"both: {len(set().union(*found.values()))} modules")
    return 0


if __name__ == "__main__":
    sys.exit(main())
