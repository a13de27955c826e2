"""Where a completion begins, its shape, and where it ends: at the positions under `endings/`, and for random text."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from codespec_grammars import Scope, Surroundings, read_surroundings
from codespec_grammars.lexer import Lexer, LexState
from hypothesis import given
from hypothesis import strategies as st

from codespec.api.types import Shape
from codespec.text.ending import MARKERS, Ending, markers_beside, resolve_scope, why_not
from codespec.text.fim_templates import _FAMILIES
from tests.text.endings import CASES, LANGUAGES, Case
from tests.text.growth import lines_run

CORE = ("python", "javascript", "typescript", "rust", "go", "c", "cpp", "java", "json", "bash")
SHAPES: tuple[Shape, ...] = ("auto", "line", "block")
PIECES = (
    *("\n", "\n    ", "\n        ", "\n\n", "\r\n", "    ", " ", "x = 1", "return x", "if x", "else", "elif y"),
    *(":", "{", "}", "(", ")", "[", "]", ";", ",", '"', "'", '"""', "`", "# note", "// note", "/* ", " */"),
    *("@dec", "def f", "fi", "done", "end", "then", "case 1:", "\\", "#if X", ".call()", "=>", "+ 1", "é"),
    *("\U0001f600", "</s>", "<|endoftext|>", "a, b, "),
)
WRITTEN = st.lists(st.sampled_from(PIECES), max_size=24).map("".join)


def ending_at(case: Case, shape: Shape | None = None) -> Ending:
    """Return the ending at a case's cursor."""
    place = read_surroundings(case.language, case.prefix.encode(), case.suffix.encode())
    return Ending(shape or case.shape, place, case.prefix, case.suffix)  # type: ignore[arg-type]


def write(ending: Ending, pieces: list[bytes]) -> int:
    """Write until the ending stops; assert that final text never changes."""
    certain = 0
    for piece in pieces:
        ending.advance(piece)
        assert ending.certain >= certain, "something certain was taken back"
        certain = ending.certain
        if ending.cut is not None:
            break
    else:
        ending.finish()
    assert ending.cut is not None and ending.cut >= certain
    return ending.cut


def bytewise(text: str) -> list[bytes]:
    """Split the text into single bytes."""
    return [bytes([byte]) for byte in text.encode()]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_a_programmer_keeps(case: Case) -> None:
    ending = ending_at(case)
    if case.idle:
        assert case.idle in ending.idle
        return
    assert not ending.idle
    kept = case.message.encode()[: write(ending, bytewise(case.message))].decode()
    assert kept == case.kept, ending.reason
    assert not case.dropped.strip() or ending.reason


def test_every_language_has_its_cases() -> None:
    count = Counter(case.language for case in CASES)
    assert set(CORE) <= set(LANGUAGES)
    assert all(count[language] >= 8 for language in CORE)


@given(st.sampled_from(CASES), st.sampled_from(SHAPES), WRITTEN, st.data())
def test_the_end_depends_on_the_bytes_alone(case: Case, shape: Shape, more: str, data: st.DataObject) -> None:
    """Neither the pieces nor the text after the end change it."""
    text = (case.message[: data.draw(st.integers(0, len(case.message)))] + more).encode()
    expected = write(ending_at(case, shape), [text[at : at + 1] for at in range(len(text))])
    marks = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=12))})
    pieces = [text[a:b] for a, b in pairwise(marks)]
    assert write(ending_at(case, shape), pieces) == expected


@given(st.sampled_from(CASES), st.sampled_from(SHAPES), WRITTEN, WRITTEN)
def test_the_end_of_a_text_is_the_end_of_a_longer_one(case: Case, shape: Shape, text: str, more: str) -> None:
    short, longer = ending_at(case, shape), ending_at(case, shape)
    short.advance(text.encode())
    longer.advance((text + more).encode())
    if short.cut is not None:
        assert longer.cut == short.cut and longer.reason == short.reason
    else:
        longer.finish()
        assert longer.cut is not None and longer.cut >= short.certain


@given(st.sampled_from(CASES), st.sampled_from(SHAPES), WRITTEN)
def test_a_completion_that_was_cut_is_left_as_it_is(case: Case, shape: Shape, more: str) -> None:
    """Filters are idempotent: kept text is kept entirely if it is the whole text."""
    text = (case.kept + more).encode()
    once = text[: write(ending_at(case, shape), [text])]
    again = ending_at(case, shape)
    assert once[: write(again, [once])] == once


@given(
    WRITTEN,
    st.sampled_from(SHAPES),
    st.sampled_from(["x = ", "if x:\n    ", "f(", "text"]),
    st.sampled_from(["", ")", "\ny"]),
)
def test_without_a_grammar_the_same_holds(text: str, shape: Shape, prefix: str, suffix: str) -> None:
    expected = write(Ending(shape, None, prefix, suffix), bytewise(text))
    assert write(Ending(shape, None, prefix, suffix), [text.encode()]) == expected


@pytest.mark.parametrize(
    "shape,prefix,message,kept",
    [
        ("auto", "x = ", "f(\n    1,\n)\ny = 2\n", "f("),
        ("auto", "if x:", "\n    y = 1\n\n    z = 2\nw = 3\n", "\n    y = 1\n\n    z = 2"),
        ("block", "x = [", "\n    1,\n    2,\n]\ny = 1\n", "\n    1,\n    2,\n]"),
        ("line", "x = ", "1\r\ny = 2\r\n", "1"),
        ("line", "if x:", "\n    y = 1\nz\n", "\n    y = 1"),
    ],
)
def test_indentation_decides_where_no_grammar_is_known(shape: Shape, prefix: str, message: str, kept: str) -> None:
    assert message.encode()[: write(Ending(shape, None, prefix, ""), bytewise(message))].decode() == kept


def test_brackets_are_counted_where_no_grammar_is_known() -> None:
    for message, kept in (("f(a), b)\n", "f(a), b"), ("[1]\n", "[1]"), ("a] + 1)\n", "a] + 1)")):
        ending = Ending("auto", None, "call(", ")")
        assert message.encode()[: write(ending, bytewise(message))].decode() == kept


def test_following_a_completion_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lexer reads a line once for its beginning and once for its end, never the text from its start."""
    body = "".join(f"    total[{number}] = compute(first, second)\n" for number in range(60))
    place = read_surroundings("python", b"def f():\n" + body.encode(), b"")
    ending = Ending("block", place, "def f():\n" + body, "")
    lexed: list[int] = []
    run = Lexer.run

    def counted(self: Lexer, state: LexState, end: int) -> LexState:
        lexed.append(end - state.pos)
        return run(self, state, end)

    monkeypatch.setattr(Lexer, "run", counted)
    for byte in body.encode():
        ending.advance(bytes([byte]))
    assert ending.cut is None and 60 <= len(lexed) <= 3 * 60
    assert sum(lexed) < 3 * len(body)


@pytest.mark.parametrize(
    ("unit", "language"),
    [("g{0}({0}), ", "javascript"), ('"{{{0}}}" + ', "javascript"), ("'{0}', ", ""), ("{0}, ", "")],
)
def test_a_long_line_costs_what_it_is_long(unit: str, language: str) -> None:
    """Twice the line takes about twice the steps, whatever it and the text to its right contain."""

    def work(size: int) -> int:
        line = "".join(unit.format(number * 7919) for number in range(size))
        prefix, suffix = "function f() {\n    call(", f"{line})\n}}\n"
        place = read_surroundings(language, prefix.encode(), suffix.encode())
        ending = Ending("block", place, prefix, suffix)
        return lines_run(lambda: [ending.advance(byte) or ending.certain for byte in bytewise(line)])

    work(1)  # first run: load modules
    assert work(32) < 2.4 * work(16), "about 2.3"


def test_a_cut_is_never_inside_a_character() -> None:
    ending = Ending("line", None, "x = ", "")
    message = "\u30ac" + "\u20ac" * 40  # the two characters end in the same byte
    assert message.encode()[: write(ending, bytewise(message))].decode()
    assert ending.reason == "it repeats itself"


@given(
    st.lists(st.sampled_from([*MARKERS, "\n", "```", " ", "<", "|>", "x"]), max_size=6).map("".join),
    st.lists(st.sampled_from([*MARKERS, "\n", "```", " ", "<", "|>", "x"]), max_size=6).map("".join),
)
def test_markers_that_the_text_holds_end_nothing(prefix: str, suffix: str) -> None:
    ends = {mark.encode() for mark in MARKERS if mark.strip() not in prefix and mark not in suffix}
    assert set(markers_beside(prefix, suffix)) == ends


ORDINARY = {"<PRE>", "<SUF>", "<MID>", "[PREFIX]", "[SUFFIX]"}  # tags, type parameters and words of ordinary text
SPELLED = {mark.removeprefix("\u2581") for family in _FAMILIES for mark in family.tokens} - ORDINARY


@pytest.mark.parametrize("mark", sorted(SPELLED))
def test_a_completion_ends_before_a_marker(mark: str) -> None:
    ending = Ending("block", None, "x = ", "")
    for byte in f"first + second{mark}third\n".encode():
        ending.advance(bytes([byte]))
        assert ending.certain <= len("first + second")
    ending.finish()
    assert ending.cut == len("first + second")


@pytest.mark.parametrize("mark", sorted(SPELLED))
def test_a_text_about_markers_may_go_on(mark: str) -> None:
    assert mark.encode() not in markers_beside(f'MARK = "{mark}"\n', "")


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
        ("c", "for (i = 0;", ""),
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
