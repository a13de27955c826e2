"""Any text with any grammar: the parsing process may die, and its client still gets an answer."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from codespec_grammars import ContextTracker, language_names, workers
from codespec_grammars.workers import HEAD, MAX_ANSWER, Worker, WorkerDied

from tests.cli.processes import user_environment
from tests.grammars.nested import growing, openers

DEEP = 100_000
CLEAN = {"yaml": b"a:\n  b: ", "python": b"x = f("}


def try_texts(language: str, texts: list[str], sides: tuple[tuple[int, int], ...]) -> None:
    """Look at the end of each text, `sides` times as long before and behind the cursor."""
    for text in texts:
        for before, behind in sides:
            tracker = ContextTracker(language, (text * before).encode(), (text * behind)[:8192].encode())
            tracker.context()
            assert tracker.grammar is not None and tracker.lexed is not None


@pytest.mark.parametrize("language", language_names())
def test_no_nested_text_ends_the_process(language: str) -> None:
    """As deep as a window allows, and a hundred thousand deep, on both sides of the cursor."""
    try_texts(language, [piece * (520 // len(piece)) for piece in openers(language)], ((1, 1),))
    heads = ("- ", "a:\n", "if a:\n", "a\n", "<a>\n", "{\n")
    try_texts(language, [growing(head, 120) for head in heads], ((1, 1),))
    try_texts(language, [piece * DEEP for piece in ("- ", "a<", "(", "<a>")], ((1, 1),))


@pytest.mark.full
@pytest.mark.parametrize("language", language_names())
def test_no_nested_text_on_either_side_ends_the_process(language: str) -> None:
    texts = [piece * (size // len(piece)) for piece in openers(language) for size in (520, 3000, DEEP)]
    try_texts(language, texts, ((1, 1), (1, 0), (0, 1)))


def test_a_text_that_breaks_its_grammar_is_not_parsed_again_while_it_grows() -> None:
    """This grammar's scanner writes more levels than it has room for."""
    tracker = ContextTracker("yaml", b"- " * 260)
    tracker.context()
    assert tracker.given_up == 1
    parsed = tracker.bytes_parsed
    for _ in range(3):
        tracker.advance(b"a")
        tracker.context()
    assert tracker.bytes_parsed == parsed
    again = ContextTracker("yaml", CLEAN["yaml"])
    again.context()
    assert again.bytes_parsed and not again.given_up, "other texts are"


def test_who_parses_is_replaced_when_it_is_killed() -> None:
    worker = Worker(workers.LOOK_UP, "python")
    assert worker.ask(("x = CSPEC\n", 4, 5, 3), 30) is not None
    with pytest.raises(WorkerDied):
        worker.ask(("x" * 10_000_000, 0, -5, -1), 0.0001)
    server = workers._fork_server._process
    assert server is not None
    for number in (*_children(server.pid), server.pid):
        with suppress(ProcessLookupError):  # the worker that was given up is ending
            os.kill(number, signal.SIGKILL)
    server.wait()
    tracker = ContextTracker("python", CLEAN["python"])
    tracker.context()
    assert not tracker.given_up, "no text is blamed for a process that had died before"


def test_parsing_processes_end_with_the_process_that_asked() -> None:
    program = (
        "import os, signal\nfrom codespec_grammars import ContextTracker\n"
        "ContextTracker('python', b'x = f(').context()\n"
        "print(open(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = user_environment(PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=60)
    (server,) = map(int, found.stdout.split())
    end = time.monotonic() + 60
    while Path(f"/proc/{server}").exists() and "State:\tZ" not in Path(f"/proc/{server}/status").read_text():
        assert time.monotonic() < end
        time.sleep(0.02)


def _children(number: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{number}/task/{number}/children").read_text().split()]


ANSWERS = {
    "no JSON": HEAD.pack(3) + b"{]\xff",
    "deep": HEAD.pack(200_000) + b"[" * 200_000,
    "too much": HEAD.pack(MAX_ANSWER + 1),
    "cut": HEAD.pack(9) + b"1",
    "nothing": b"",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("beside", [False, True])
def test_a_nonsense_answer_is_a_dead_process(answer: bytes, beside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    (ours, theirs), (life, other) = socket.socketpair(), socket.socketpair()
    monkeypatch.setattr(workers._fork_server, "order", lambda service, language: (ours, life))
    worker = Worker("any", "any")
    theirs.sendall(answer)
    theirs.shutdown(socket.SHUT_WR)
    with theirs, other, pytest.raises(WorkerDied):
        if beside:
            asyncio.run(worker.ask_beside({}, 5.0))
        else:
            worker.ask({}, 5.0)
