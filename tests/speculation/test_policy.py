"""The simple policies do what their names say."""

from __future__ import annotations

import pytest

from codespec.speculation.policy import WARM_UP, Ds4Table
from tests.speculation.sequences import sequence


@pytest.mark.parametrize(
    "context,tip,tokens",
    [
        ("comment", b"# ", 10), ("free_text", b"a", 0), ("operator", b"x =", 10), ("statement", b"# ---", 10),
        ("statement", b"x", 3), ("unknown", b"", 3), ("free_text", b"--", 0),
    ],
)  # fmt: skip
def test_the_table_of_issue_80(context: str, tip: bytes, tokens: int) -> None:
    made = sequence(context)
    made.context = tip
    assert Ds4Table(16).plan([made]).caps[0].tokens == tokens


@pytest.mark.parametrize(("tokens", "cap"), [(WARM_UP - 1, 0), (WARM_UP, 10)])
def test_the_table_of_issue_80_waits_for_context(tokens: int, cap: int) -> None:
    made = sequence("comment")
    made.context, made.ids = b"# ", [1] * tokens
    assert Ds4Table(16).plan([made]).caps[0].tokens == cap
