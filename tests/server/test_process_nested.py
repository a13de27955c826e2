"""`codespec serve` parses nothing, so no text can break or stall it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.server.test_process import Process


def complete(served: Process, prefix: str, language: str) -> None:
    body = {"prefix": prefix, "suffix": "", "language": language, "max_tokens": 2}
    status, message = served.ask("POST", "/v1/codespec/complete", body)
    assert status == 200, message


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
