"""Limits on the memory and engine time that clients can use in a real daemon."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading
import time
import zlib
from contextlib import ExitStack
from pathlib import Path

import pytest

from codespec.api.limits import MAX_BODY, MAX_SEPARATORS
from codespec.files import MAX_JSON_DEPTH
from codespec.server.dialects.llama_cpp import MAX_CONTENT
from tests.cli.conftest import LONG
from tests.cli.processes import SECONDS
from tests.server.daemons import wait_for
from tests.server.test_process import Process

PATH = "/v1/codespec/complete"
ENDLESS = {"max_tokens": LONG, "n_predict": LONG, "options": {"num_predict": LONG}, "prompt": "def f(x):\n"}
CHAT = {"messages": [{"role": "user", "content": "x"}]}
STREAMED = ("/v1/completions", "/completion", "/api/generate", "/v1/fim/completions", "/v1/chat/completions")


def test_what_waits_holds_its_request_only(real: Process) -> None:
    """Many open requests with a body of empty lists, and with a maximal body of which nothing is used."""
    lists = b'{"prompt": "x", "stream": true, "junk": [' + b"[]," * (MAX_BODY // 3 - 20) + b"[]]}"
    before = memory(real)
    text = "a" * (MAX_BODY - 4 * MAX_SEPARATORS - 10_000) + "\U0001f600"  # four bytes per character in memory
    unused = {"junk": text, "more": [[]] * (MAX_SEPARATORS // 2 - 1000)}
    with ExitStack() as stack:
        opened = [real.open(path, lists) for path in STREAMED[:3]]
        for path in (*STREAMED, *STREAMED):
            body = {**(CHAT if "chat" in path else {}), **ENDLESS, "stream": True, **unused}
            opened.append(real.open(path, json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()))
        for one in opened:
            stack.callback(one.close)
        statuses = [one.getresponse().status for one in opened[:3]]
        assert wait_for(lambda: real.num_open() == 10)
        grown = memory(real) - before
    assert statuses == [400] * 3
    assert wait_for(lambda: real.num_open() == 0)
    assert grown < 10 * MAX_BODY, "as large as they came they take five times as much"


def memory(served: Process) -> int:
    """Return the daemon's memory in bytes."""
    lines = Path(f"/proc/{served.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024


def processor_time(served: Process) -> int:
    """Return the daemon's CPU time in clock ticks."""
    fields = Path(f"/proc/{served.process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_packed_body_is_refused_unopened(real: Process) -> None:
    """It costs no more than an uncompressed body of its size; these would expand to 8 GiB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(64 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    bomb = gzip.compress(b"")[:10] + block * (MAX_BODY // len(block))
    spent = []
    for headers in ({}, {"Content_Encoding": "gzip"}):
        begun = processor_time(real)
        status, message = real.ask("POST", PATH, bomb, **headers)
        spent.append(processor_time(real) - begun)
    assert (status, json.loads(message)["error"]["field"]) == (415, "Content-Encoding")
    plain, packed = spent
    assert packed <= 10 * (plain + 1), spent
    status, _ = real.ask("POST", PATH, gzip.compress(b'{"prefix": "x"}'), Content_Encoding="gzip")
    assert status == 415


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
def test_long_words_and_many_values_are_one_sentence(path: str, real: Process) -> None:
    for body, field in (({"stop": ["x" * 5000]}, "stop"), ({"prompt": [1] * (MAX_SEPARATORS + 9)}, "body")):
        status, message = real.ask("POST", path, {"prompt": "x", **body})
        assert (status, json.loads(message)["error"]["field"]) == (400, field)
    text = ", [{" * (MAX_SEPARATORS // 2)  # brackets inside strings are not counted
    status, message = real.ask("POST", path, {"prompt": "x", "max_tokens": 1, "n_predict": 1, "unused": text})
    assert status == 200, message[:300]


@pytest.mark.parametrize("depth", [MAX_JSON_DEPTH, 500, 100_000])
def test_what_nests_too_deep_is_one_sentence(depth: int, real: Process) -> None:
    """In a field that is never read; code that walks the values need not limit its recursion."""
    body = b'{"prefix": "x", "max_tokens": 1, "unused": ' + b"[" * depth + b"]" * depth + b"}"
    for path in STREAMED:
        status, message = real.ask("POST", path, body)
        assert (status, json.loads(message)["error"]["field"] if "api" not in path else "body") == (400, "body"), (
            message
        )
        assert f"nested more than {MAX_JSON_DEPTH} brackets deep" in message.decode()


def test_a_long_text_is_tokenized_beside_the_others(real: Process) -> None:
    """Rounds continue meanwhile, at no less than a sixth of their pace."""
    text = ("def first(values):\n    return values[0] + 17\n" * MAX_CONTENT)[:MAX_CONTENT]
    status, message = real.ask("POST", "/tokenize", {"content": text + "x"})
    assert (status, json.loads(message)["error"]["field"]) == (400, "content")
    stream = real.open(PATH, {"prefix": "def f(x):\n", "max_tokens": LONG, "shape": "raw"})
    reply = stream.getresponse()
    came: list[float] = []
    reader = threading.Thread(target=note_rounds, args=(reply, came))
    reader.start()
    assert wait_for(lambda: len(came) > 30)
    windows = []
    for _ in range(3):
        begun = time.monotonic()
        assert real.ask("POST", "/tokenize", {"content": text})[0] == 200
        windows.append((begun, time.monotonic()))
    assert reader.is_alive(), "there were rounds to be made"
    stream.sock.shutdown(socket.SHUT_RDWR)
    reader.join(SECONDS)
    stream.close()
    beside = [time_ for time_ in came if any(begun < time_ < end for begun, end in windows)]
    before = [time_ for time_ in came if time_ < windows[0][0]]
    pace = len(before) / (before[-1] - before[0])
    spent = sum(end - begun for begun, end in windows)
    print(f"rounds beside {len(beside)}, in {spent:.2f} s, alone {pace:.1f} a second")
    assert len(beside) > pace * spent / 6


def note_rounds(reply: http.client.HTTPResponse, came: list[float]) -> None:
    """Record the time of each round's event, to the end of the stream."""
    try:
        while line := reply.readline():
            if line.startswith(b"event: round"):
                came.append(time.monotonic())
    except (OSError, http.client.HTTPException):
        return


def test_sequences_in_sequences(real: Process) -> None:
    """This grammar's scanner writes more levels than it has room for, but the daemon parses nothing."""
    for _ in range(3):
        nested = {"prefix": "- " * 260, "suffix": "", "language": "yaml", "max_tokens": 2}
        status, message = real.ask("POST", PATH, nested)
        assert status == 200, message
    body = {"language": "yaml", "segments": {"prefix": "- " * 260, "suffix": ""}}
    assert real.ask("POST", "/v1/completions", body)[0] == 200, "as another dialect asks"
    assert real.process.poll() is None and json.loads(real.ask("GET", "/health")[1])["status"] == "ok"
    assert not any("codespec_grammars" in command for command in commands_of_children(real.process.pid))


def commands_of_children(number: int) -> list[str]:
    tasks = Path(f"/proc/{number}/task").iterdir()
    children = [child for task in tasks for child in (task / "children").read_text().split()]
    return [Path(f"/proc/{child}/cmdline").read_text() for child in children]
