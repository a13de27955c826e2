"""Editors with hundreds of open files: a request reads the file system for the ones used last alone."""

from __future__ import annotations

import pytest
from codespec_lsp import documents, exclusions
from codespec_lsp.exclusions import Rules

from tests.lsp.conversation import run
from tests.lsp.fake_daemon import talking


def test_the_work_of_a_request_does_not_grow_with_the_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    decided: list[str] = []
    reason = Rules.reason
    monkeypatch.setattr(Rules, "reason", lambda self, uri: decided.append(uri) or reason(self, uri))  # type: ignore[func-returns-value]
    monkeypatch.setattr(exclusions, "DECISION_TIMEOUT_S", 60.0)
    monkeypatch.setattr(documents, "MAX_NEAR", 4)

    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            for number in range(20):
                client.open("y = 0\n", uri=f"file:///p/m{number}.py")
            client.open("x = \n")
            client.type(2, 0, 0, "y", uri="file:///p/m9.py")
            assert await client.texts(0, 2, uri="file:///p/m9.py") == ["yy1"]
            monkeypatch.setattr(exclusions, "MAX_DECISION_AGE_S", -1.0)
            decided.clear()
            assert await client.texts(0, 4) == ["x = 1"]
            assert 0 < len(set(decided)) <= 5
            (snippet,) = fake.asked[-1].body["snippets"]
            assert snippet["path"] == "p/m9.py", "a file used shortly before is among them"

    run(scenario())
