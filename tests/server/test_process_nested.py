"""`codespec serve` with texts that break grammars, or keep them busy: it answers, and goes on with the next client."""

from __future__ import annotations

import json
import threading
import time

import pytest
from codespec_grammars import language_names
from tests.server.test_process import Process

PATIENCE = 0.5  # seconds that another client's request may take longer than the slowest one before
PIECES = ("- ", "? ", "a<", "(", "[", "{", "<a>", "`${", "if a:\n", '"#{')


def complete(served: Process, prefix: str, language: str = "python", suffix: str = "") -> dict[str, object]:
    body = {"prefix": prefix, "suffix": suffix, "language": language, "max_tokens": 2}
    status, said = served.ask("POST", "/v1/codespec/complete", body)
    assert status == 200, said
    return {"text": said}


def test_sequences_in_sequences(real: Process) -> None:
    """The scanner of this grammar writes more levels than it has room for."""
    for _ in range(3):
        complete(real, "- " * 260, "yaml")
    body = {"language": "yaml", "segments": {"prefix": "- " * 260, "suffix": ""}}
    assert real.ask("POST", "/v1/completions", body)[0] == 200, "as another dialect asks"
    assert real.process.poll() is None and json.loads(real.ask("GET", "/health")[1])["status"] == "ready"


@pytest.mark.parametrize("language", language_names())
def test_others_are_answered_meanwhile(real: Process, language: str) -> None:
    """Texts of all depths in one language, and somebody who asks for plain code in another."""
    plain = [_seconds(real) for _ in range(3)]
    others: list[float] = []
    over = threading.Event()

    def ask_on() -> None:
        while not over.is_set():
            others.append(_seconds(real))

    asking = threading.Thread(target=ask_on)
    asking.start()
    try:
        for piece in PIECES:
            for size in (520, 2000, 60_000):
                complete(real, piece * (size // len(piece)), language)
                complete(real, "", language, suffix=piece * (size // len(piece)))
    finally:
        over.set()
        asking.join()
    assert real.process.poll() is None
    assert max(others) < max(plain) + PATIENCE, (max(plain), sorted(others)[-3:])


def _seconds(served: Process) -> float:
    began = time.perf_counter()
    complete(served, "x = f(")
    return time.perf_counter() - began
