"""The simple policies do what their names say, and a user's own numbers override everything."""

from __future__ import annotations

import pytest

from codespec.speculation.cost_policy import CostPolicy
from codespec.speculation.policy import WARM_UP, Ds4Table, FixedLength, UserCapped
from tests.speculation.sequences import sequence, table


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


@pytest.mark.parametrize(
    "context,language,most",
    [("docstring", "python", 0), ("docstring", "go", 4), ("comment", "go", 2), ("statement", "go", 9)],
)
def test_a_users_number_is_a_hard_cap(context: str, language: str, most: int) -> None:
    limits = {"comment": 2, "docstring": 4, "python.docstring": 0}
    for inner in (FixedLength(9), CostPolicy(table(0.0), ("suffix",), tokens=9)):
        made = sequence(context, language)
        policy = UserCapped(inner, limits)
        plan = policy.plan([made])
        (cap,) = plan.caps
        assert (
            cap.tokens == cap.of("suffix").tokens == most
            and made.room == 63
            and policy.follows_syntax
            and policy.name == inner.name
        )


@pytest.mark.parametrize(("tokens", "cap"), [(WARM_UP - 1, 0), (WARM_UP, 10)])
def test_the_table_of_issue_80_waits_for_context(tokens: int, cap: int) -> None:
    made = sequence("comment")
    made.context, made.ids = b"# ", [1] * tokens
    assert Ds4Table(16).plan([made]).caps[0].tokens == cap
