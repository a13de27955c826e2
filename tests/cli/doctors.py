"""Run `codespec doctor` on tiny models without a daemon, and parse its lines by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Models, Outcome

Look = Callable[..., dict[str, str]]


@pytest.fixture(name="look")
def fixture_look(command: Command, models: Models, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Look:
    """Return a function that runs the doctor without a probe and returns its lines by name, and its exit code as
    `code`.
    """
    monkeypatch.chdir(tmp_path)

    def examine(*words: str | Path, target: Path = models.target, drafter: str | Path = "none") -> dict[str, str]:
        return lines_of(command("doctor", "--no-probe", "--target", target, "--drafter", drafter, *words))

    return examine


def lines_of(done: Outcome) -> dict[str, str]:
    """Return the findings by name, each as "state: text"."""
    assert done.err == "" and "Traceback" not in done.out
    found = {"code": str(done.code)}
    for line in done.out.splitlines()[:-2]:
        state, name, message = line.split(maxsplit=2)
        assert state in ("ok", "warning", "failed") and name not in found, line
        found[name] = f"{state}: {message}"
        assert state == "ok" or ": " in message, "what is not well has a fix"
    assert done.code == any(message.startswith("failed") for message in found.values())
    return found
