"""Fuzz the real language server: messages of an editing session, damaged messages, broken frames."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import re
import subprocess
import threading
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from tests.cli.processes import start, user_environment
from tests.full.fuzzing import VALUES, Finding, Memory, damaged, scratched, turns
from tests.lsp.conversation import insertion, question, replacement

SECONDS = 600  # without an answer or an end; on a busy machine a start alone takes ten
SETTLED = 20_000  # messages
TEXT = "import os\n\n\ndef f(x):\n    return x\n" * 5
URIS = [
    "file:///a.py",
    "file:///b%20c.ts",
    "untitled:1",
    "file:///.env",
    "file:///" + "d" * 300 + ".py",
    "",
    "a:b",
    "\0",
]
REFUSED = re.compile(r"codespec lsp: .{1,400} Please report this to the makers of the editor\.\n")
ANSWERS = (-32700, -32600, -32601, -32602, -32002, -32800, -32801, -32803)  # allowed error codes


class Server:
    """`codespec lsp` on pipes."""

    def __init__(self, home: str) -> None:
        self.log = TemporaryFile(dir=home)  # noqa: SIM115 - closed with the process
        homes = dict.fromkeys(("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"), home)
        self.process: subprocess.Popen[bytes] = start(
            "lsp", "--no-start", stdin=subprocess.PIPE, stderr=self.log, env=user_environment(**homes), cwd=home
        )
        assert self.process.stdout is not None
        self.heard: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.numbers = 0
        self.listening = threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True)
        self.listening.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.listening.join()
        for stream in (self.process.stdin, self.process.stdout, self.log):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def send(self, body: bytes) -> None:
        """Send a frame."""
        self.send_raw(b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def send_raw(self, data: bytes) -> None:
        """Send bytes to a server that may have ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except BrokenPipeError:
            return

    def ask(self, method: str, params: Any) -> dict[str, Any]:
        """Send a valid request and return the reply."""
        self.numbers += 1
        number = f"sound {self.numbers}"
        self.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode())
        while True:
            message = self.heard.get(timeout=SECONDS)
            if message is None:
                raise EOFError("the server has ended")
            if "method" not in message and message.get("id") == number:
                return message
            error = message.get("error") or {}
            if error and error["code"] not in ANSWERS:
                raise ValueError(f"an answer of {error}")

    def greet(self) -> None:
        """Perform the handshake."""
        inline = {"textDocument": {"inlineCompletion": {}, "completion": {}}}
        self.ask("initialize", {"processId": None, "rootUri": None, "capabilities": inline})
        self.send(b'{"jsonrpc":"2.0","method":"initialized","params":{}}')

    def leave(self) -> tuple[int, str]:
        """Shut the server down in order; return its exit code and its stderr."""
        self.ask("shutdown", None)
        self.send(b'{"jsonrpc":"2.0","method":"exit"}')
        return self.ended()

    def ended(self) -> tuple[int, str]:
        """Wait for the server to end; return its exit code and its stderr."""
        code = self.process.wait(SECONDS)
        return code, self.complaints()

    def complaints(self) -> str:
        """Return its stderr, which editors show, without the sentences about messages of a wrong form."""
        lines = os.pread(self.log.fileno(), 1 << 16, 0).decode("utf-8", "replace").splitlines(keepends=True)
        return "".join(line for line in lines if not REFUSED.fullmatch(line))

    def _listen(self, stream: BinaryIO) -> None:
        length = 0
        while line := stream.readline():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
            elif not line.strip():
                self.heard.put(json.loads(stream.read(length)))
        self.heard.put(None)


def message(chance: random.Random, number: int) -> dict[str, Any]:
    """Return a random message of an editing session."""
    uri, line, character = chance.choice(URIS), chance.randrange(30), chance.randrange(40)
    item = {"uri": uri, "languageId": "python", "version": number, "text": TEXT}
    versioned = {"uri": uri, "version": number}
    place = {"textDocument": {"uri": uri}, "position": {"line": line, "character": character}}
    changes = [
        insertion(line, character, chance.choice(["x", "\n", "é\U0001f600", "\r", "a" * 2000])),
        replacement(line, character, line + 1, 0, chance.choice(["", "y = 1"])),
        {"text": TEXT},
    ]
    settings = {"codespec": {"budgetMs": 300, "exclude": ["*.md"], "enable": {"*": True}}}
    asked = {"inlineCompletion": question(line, character, uri, 1), "completion": place}
    kind, told = chance.choice(sorted(asked)), chance.random()
    if told < 0.3:
        return {"jsonrpc": "2.0", "id": number, "method": f"textDocument/{kind}", "params": asked[kind]}
    if told < 0.6:
        params: Any = {"textDocument": versioned, "contentChanges": chance.choices(changes, k=chance.choice([1, 1, 4]))}
        return {"jsonrpc": "2.0", "method": "textDocument/didChange", "params": params}
    method, params = chance.choice(
        [
            ("textDocument/didOpen", {"textDocument": item}),
            ("textDocument/didOpen", {"textDocument": item}),
            ("textDocument/didClose", {"textDocument": {"uri": uri}}),
            ("textDocument/didFocus", {"textDocument": {"uri": uri}}),
            ("textDocument/didShowCompletion", {"item": {"insertText": "x", "command": {"arguments": ["1"]}}}),
            ("textDocument/didPartiallyAcceptCompletion", {"item": {"insertText": "x"}, "acceptedLength": 1}),
            ("workspace/didChangeConfiguration", {"settings": settings}),
            ("workspace/didChangeWorkspaceFolders", {"event": {"added": [{"uri": uri, "name": "a"}], "removed": []}}),
            ("workspace/executeCommand", {"command": "codespec.accepted", "arguments": ["1", 2]}),
            ("$/cancelRequest", {"id": number - chance.randrange(5)}),
            ("$/setTrace", {"value": "verbose"}),
            ("initialize", {"processId": None, "rootUri": None, "capabilities": {}}),
            ("window/workDoneProgress/cancel", {"token": 1}),
        ]
    )
    asks = method in ("initialize", "workspace/executeCommand") or chance.random() < 0.05
    return {"jsonrpc": "2.0", **({"id": number} if asks else {}), "method": method, "params": params}


def body_of(chance: random.Random, number: int) -> bytes:
    """Return a message's bytes, valid or damaged."""
    value: Any = message(chance, number)
    if chance.random() < 0.5:
        value = {**value, "params": damaged(value["params"], chance, chance.choice([1, 1, 3]))}
    if chance.random() < 0.1:
        value = damaged(value, chance)
    data = json.dumps(value, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    if chance.random() < 0.05:
        data = chance.choice([b"[" * 100_000, b"", b"\xff", b'{"jsonrpc":"2.0"}', json.dumps(VALUES).encode()])
    return scratched(data, chance) if chance.random() < 0.1 else data


def run(home: str, chance: random.Random) -> None:
    """Fuzz until the time is over. Raise Finding."""
    with Server(home) as server:
        _converse(server, home, chance)


def _converse(server: Server, home: str, chance: random.Random) -> None:
    last: list[bytes] = []
    server.greet()
    memory = Memory(server.process.pid, SETTLED)
    for turn in turns():
        body = body_of(chance, turn)
        if b'"exit"' in body or b'"shutdown"' in body:
            continue
        last = [*last[-40:], body]
        server.send(body)
        if turn % 20 == 0:
            try:
                server.ask("codespec/status", {})
                if complaint := server.complaints():
                    raise ValueError(complaint[:2000])
            except (EOFError, ValueError, queue.Empty) as error:
                raise Finding(f"{type(error).__name__}: {error}", last) from error
        if turn % 500 == 0:
            memory.look(turn, "see the seed")
            _break_a_frame(home, chance)
    code, err = server.leave()
    if code or err:
        raise Finding(f"it ended with {code} and wrote {err[:2000]!r}", last)


def _break_a_frame(home: str, chance: random.Random) -> None:
    """Send a broken frame to a separate server, which may exit but must not fail."""
    with Server(home) as server:
        server.greet()
        body = body_of(chance, 1)
        data = scratched(b"Content-Length: %d\r\n\r\n" % len(body), chance) + body
        server.send_raw(data)
        assert server.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            server.process.stdin.close()
        code, err = server.ended()
    if code not in (0, 1) or err:
        raise Finding(f"it ended with {code} and wrote {err[:2000]!r}", data)
