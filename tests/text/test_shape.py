"""The shape of a completion, and positions where none begins."""

from __future__ import annotations

import pytest
from codespec_grammars import Scope, Surroundings, read_surroundings

from codespec.text.ending import resolve_scope, why_not


def asked(language: str, prefix: str, suffix: str) -> tuple[Surroundings | None, bytes, bytes]:
    """Return a cursor in the form the engine passes."""
    before, after = prefix.encode(), suffix.encode()
    return read_surroundings(language, before, after), before, after.partition(b"\n")[0]


@pytest.mark.parametrize(
    "language,prefix,suffix,scope",
    [
        ("python", "def f():\n    ", "", Scope.BLOCK),
        ("python", "def f():", "", Scope.BLOCK),
        ("python", "def f():\n    x = 1\n    ", "", Scope.STATEMENT),
        ("python", "x = ", "", Scope.STATEMENT),
        ("python", "x = ", " + 1", Scope.LINE),
        ("python", "f(", ")", Scope.REST),
        ("python", "# why", "", Scope.LINE),
        ("python", 'x = "a', "", Scope.LINE),
        ("javascript", "if (x) {", "}", Scope.BLOCK),
        ("javascript", "f(() => {\n  ", "\n});", Scope.BLOCK),
        ("", "x = ", "", Scope.LINE),
        ("", "if x:", "", Scope.BLOCK),
        ("", "", "", Scope.BLOCK),
        ("klingon", "x = ", ")", Scope.LINE),
    ],
)
def test_auto(language: str, prefix: str, suffix: str, scope: Scope) -> None:
    assert resolve_scope("auto", *asked(language, prefix, suffix)) is scope


def test_a_shape_that_was_asked_for_is_taken() -> None:
    for language in ("python", ""):
        place = asked(language, "x = ", "")
        assert resolve_scope("line", *place) is Scope.LINE
        assert resolve_scope("block", *place) is Scope.BLOCK


@pytest.mark.parametrize(
    "language,prefix,suffix,reason",
    [
        ("python", "na", "me = 1", "inside a word"),
        ("", "grö", "ße", "inside a word"),
        ("python", "", "name = 1", "a word follows the cursor"),
        ("", "f(", "name", "a word follows the cursor"),
        ("python", "log(", '"ready")', "a string follows the cursor"),
        ("python", "compu", "(first)", "the name before the cursor is complete"),
        ("rust", "prin", '!("{}")', "the name before the cursor is complete"),
        ("python", "row", "[0]", "the name before the cursor is complete"),
        ("java", "int x = 1;", "", "the statement before the cursor is finished"),
        ("javascript", "run();", "", "the statement before the cursor is finished"),
        ("", "f()", "", "closing bracket"),
        ("go", "f()", " {", "closing bracket"),
        ("python", 'f("a"', ")", "only a closing bracket"),
        ("c", "f(1", ");", "only a closing bracket"),
        ("python", "f([1, 2] ", ")", "only a closing bracket"),
    ],
)
def test_where_nothing_begins(language: str, prefix: str, suffix: str, reason: str) -> None:
    assert reason in why_not(*asked(language, prefix, suffix))


@pytest.mark.parametrize(
    "language,prefix,suffix",
    [
        ("python", "name", " = 1"),
        ("python", "# as f(x)", ""),
        ("python", 'print("f()', '")'),
        (
            "c",
            "for (i = 0;",
            "",
        ),
        ("go", "for i := 0;", ""),
        ("bash", "if [ -z $x ];", ""),
        ("rust", "let a = [0;", "];"),
        ("java", "int x = 1; ", ""),
        ("python", 'log("', '")'),
        ("python", "f(", ")"),
        ("python", "f(a, ", ")"),
        ("python", "f(nam", ")"),
        ("python", "f(not ", ")"),
        ("javascript", "if (x) {", "}"),
        ("", "x = ", ""),
    ],
)
def test_where_something_may_begin(language: str, prefix: str, suffix: str) -> None:
    assert why_not(*asked(language, prefix, suffix)) == ""
