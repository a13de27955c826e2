"""`codespec serve` parses nothing: texts that break or stall grammars are answered, and so is the next client."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from tests.server.test_process import Process

PATIENCE = 0.5  # seconds that another client's request may exceed the slowest one before
TRIES = 3  # a text that stalls the daemon does so each time; a busy machine does not
PIECES = ("- ", "? ", "a<", "(", "[", "{", "<a>", "`${", "if a:\n", '"#{')


def complete(served: Process, prefix: str, language: str = "python", suffix: str = "") -> None:
    body = {"prefix": prefix, "suffix": suffix, "language": language, "max_tokens": 2}
    status, said = served.ask("POST", "/v1/codespec/complete", body)
    assert status == 200, said


def test_sequences_in_sequences(real: Process) -> None:
    """This grammar's scanner writes more levels than it has room for."""
    for _ in range(3):
        complete(real, "- " * 260, "yaml")
    body = {"language": "yaml", "segments": {"prefix": "- " * 260, "suffix": ""}}
    assert real.ask("POST", "/v1/completions", body)[0] == 200, "as another dialect asks"
    assert real.process.poll() is None and json.loads(real.ask("GET", "/health")[1])["status"] == "ok"
    assert not any("codespec_grammars" in command for command in commands_of_children(real.process.pid))


def commands_of_children(number: int) -> list[str]:
    tasks = Path(f"/proc/{number}/task").iterdir()
    children = [child for task in tasks for child in (task / "children").read_text().split()]
    return [Path(f"/proc/{child}/cmdline").read_text() for child in children]


@pytest.mark.parametrize("language", ["cpp", "html", "javascript", "python", "yaml"])
def test_others_are_answered_meanwhile(real: Process, language: str) -> None:
    """Requests in another language, compared with those sent next to prompts of clean code of the same length."""
    usual = slowest_of_others(real, language, ("x = 1\n",))
    assert any(slowest_of_others(real, language, PIECES) < usual + PATIENCE for _ in range(TRIES))
    assert real.process.poll() is None


def slowest_of_others(served: Process, language: str, pieces: tuple[str, ...]) -> float:
    """Return the longest wait in seconds of another client while these texts are completed, at increasing depth."""
    times: list[float] = []
    over = threading.Event()

    def ask_on() -> None:
        while not over.is_set():
            began = time.perf_counter()
            complete(served, "x = f(")
            times.append(time.perf_counter() - began)

    asking = threading.Thread(target=ask_on)
    asking.start()
    try:
        for piece in pieces:
            for size in (520, 2000, 6000):
                complete(served, piece * (size // len(piece)), language)
                complete(served, "", language, suffix=piece * (size // len(piece)))
    finally:
        over.set()
        asking.join()
    return max(times)
