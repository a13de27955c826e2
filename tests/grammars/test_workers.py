"""Any answer from a broken parsing process is reported as its failure."""

from __future__ import annotations

import asyncio
import socket

import pytest
from codespec_grammars import workers
from codespec_grammars.workers import HEAD, MAX_ANSWER, Worker, WorkerDied

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
