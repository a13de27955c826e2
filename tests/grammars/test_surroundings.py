"""The construct begun at a cursor, and where the text to the right closes it."""

from __future__ import annotations

import pytest
from codespec_grammars import CodeEnd, Scope, read_surroundings
from codespec_grammars.language import languages
from codespec_grammars.lexer import Lexer, LexState, dangles, introduces, is_whole
from codespec_grammars.lexer_rules import compile_rules
from codespec_grammars.surroundings import Closed, width

from tests.grammars.sources import CORE, source_of

NOWHERE, SAME_LINE, LATER = Closed.NOWHERE, Closed.SAME_LINE, Closed.LATER


@pytest.mark.parametrize(
    "language,prefix,suffix,closed",
    [
        ("python", "f(", ")", (SAME_LINE,)),
        ("python", "f(", "", (NOWHERE,)),
        ("python", "f([", "])", (SAME_LINE, SAME_LINE)),
        ("python", "f(\n    ", "\n)\n", (LATER,)),
        ("python", 'f("', '")', (SAME_LINE, SAME_LINE)),
        ("python", "f(", " + g(a)\n", (NOWHERE,)),
        ("javascript", "function f() {\n  if (x) {", "\n}\n", (LATER, NOWHERE)),
        ("javascript", "function f() {\n  if (x) {", "\n  }\n}\n", (LATER, LATER)),
        ("javascript", "function f() {\n  if (x) {", "}\n}\n", (LATER, SAME_LINE)),
        ("javascript", "f(() => {\n  ", "\n});\n", (LATER, LATER)),
        ("json", '{\n  "a": [', "],\n", (NOWHERE, SAME_LINE)),
        ("go", 'x := f("(', '")', (SAME_LINE, SAME_LINE)),
    ],
)
def test_what_the_text_to_the_right_closes(language: str, prefix: str, suffix: str, closed: tuple[Closed, ...]) -> None:
    around = read_surroundings(language, prefix.encode(), suffix.encode())
    assert around is not None and around.closed == closed


@pytest.mark.parametrize(
    "language,prefix,opened",
    [
        ("python", "def f():\n    ", True),
        ("python", "def f():\n\n    ", True),
        ("python", "def f():\n    # why\n    ", True),
        ("python", 'def f():\n    """Why."""\n    ', True),
        ("python", "def f():\n    x = 1\n    ", False),
        ("python", "x = {1: 2}\n", False),
        ("python", "", False),
        ("rust", "fn f() {", True),
        ("rust", "fn f() {\n    a();\n    ", False),
        ("bash", "if a; then\n  ", True),
    ],
)
def test_whether_something_was_just_opened(language: str, prefix: str, opened: bool) -> None:
    around = read_surroundings(language, prefix.encode())
    assert around is not None and around.opened is opened


CUTS = [(language, cut) for language in CORE for cut in range(137, len(source_of(language)), 4999)]


@pytest.mark.parametrize("end", [b"", b"\n", b" \\", b" \\\n  ", b' "a', b" # b", b"\r\n"])
def test_the_state_is_the_lexers_from_its_start_and_from_the_checkpoint(end: bytes) -> None:
    for language, cut in CUTS:
        around = read_surroundings(language, source_of(language)[:cut] + end)
        assert around is not None and around.checkpoint.pos <= len(around.before)
        for start in (LexState(), around.checkpoint):
            assert Lexer(around.rules, around.before).run(start, len(around.before)) == around.state


def test_an_unknown_language_has_no_surroundings() -> None:
    assert read_surroundings("klingon", b"x = ") is None


def test_an_end_far_into_a_long_file() -> None:
    """The window drops distant text above; constructs opened near the cursor count."""
    prefix = b"class A {\n" + b"  void f() { g(1); }\n" * 20_000 + b"  void h() {\n    "
    around = read_surroundings("java", prefix, b"\n  }\n}\n")
    assert around is not None and len(around.before) < 10_000
    end = CodeEnd(around, Scope.STATEMENT)
    end.advance(b"int x = 1;\n    int y = 2;\n")
    assert end.cut is not None and end.cut.keep == len(b"int x = 1;")


def test_tabs_reach_to_the_next_eight_columns() -> None:
    assert [width(line) for line in (b"x", b"  x", b"\tx", b"  \tx", b"\t x", b"")] == [0, 2, 8, 8, 9, 0]


def test_what_a_line_says_about_its_statement() -> None:
    python, java = (compile_rules(languages()[name]) for name in ("python", "java"))
    assert all(introduces(line, python) for line in (b"# why", b"@cache", b"  @a.b(1)\n", b"@a("))
    assert not any(introduces(line, python) for line in (b"x = 1", b"a @ b"))
    assert all(introduces(line, java) for line in (b"/** why */", b"// why", b"@Override"))
    assert all(dangles(line) for line in (b"x = ", b"a and", b"a &&", b"b +", b"c \\"))
    assert not any(dangles(line) for line in (b"x++ ;", b"operand", b"f(x)"))
    assert is_whole(b"    x = 1", python) and not is_whole(b"    if x: y()", python)
    assert is_whole(b"int x = 1;", java) and not is_whole(b"if (x) y();", java) and not is_whole(b"int x", java)
