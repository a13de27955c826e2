"""Rounds follow a text's syntax without calling another process."""

from __future__ import annotations

import pytest
from codespec_grammars import ContextTracker, workers

from tests.speculation.sequences import sequence


def test_a_round_parses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a parse in another process takes longer than contexts bring")

    monkeypatch.setattr(workers, "look_up", refuse)
    made = sequence()
    made.outlook.tracker, made.outlook.read = ContextTracker("python", b"x = 1\ny = '"), -1
    made.follow_syntax()
    assert made.outlook.context == "string" and made.outlook.seconds > 0.0
