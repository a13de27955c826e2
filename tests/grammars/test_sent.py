"""The language server's cursor context takes precedence if the tracker's window is too small to see open constructs."""

from __future__ import annotations

import pytest
from codespec_grammars import Context, ContextTracker, Cursor

PROSE = b"Some words of it, don't count them.\n" * 600


def test_a_docstring_from_far_above() -> None:
    prefix = b'def f():\n    """Says\n' + PROSE
    assert ContextTracker("python", prefix).context().context is not Context.DOCSTRING
    tracker = ContextTracker("python", prefix, sent=Cursor(Context.DOCSTRING, "", 4))
    assert tracker.context() == Cursor(Context.DOCSTRING, "", 4)
    tracker.advance(b"more words, x = f(")
    assert tracker.context().context is Context.DOCSTRING
    tracker.advance(b'\n    """\n    x = call(')
    assert tracker.context().context is Context.ARGUMENTS


@pytest.mark.parametrize(("language", "opener"), [("c", b"/*"), ("javascript", b"/*"), ("rust", b"/*")])
def test_a_comment_from_far_above(language: str, opener: bytes) -> None:
    tracker = ContextTracker(language, opener + PROSE, sent=Cursor(Context.COMMENT, "", 0))
    tracker.advance(b" and")
    assert tracker.context().context is Context.COMMENT
    tracker.advance(b" */ x = ")
    assert tracker.context().context is Context.OPERATOR


def test_a_template_from_far_above() -> None:
    tracker = ContextTracker("javascript", b"const a = `" + PROSE, sent=Cursor(Context.STRING, "", 0))
    tracker.advance(b"text ${na")
    assert tracker.context().context is Context.IDENTIFIER
    tracker.advance(b"me} text")
    assert tracker.context().context is Context.STRING


def test_brackets_from_far_above_stay_open_until_they_are_closed() -> None:
    prefix = b"call([\n" + b"    value,\n" * 2000
    sent = Cursor(Context.ARGUMENTS, "([", 4)
    tracker = ContextTracker("python", prefix, sent=sent)
    assert tracker.context() == sent
    tracker.advance(b"    other(")
    assert tracker.context().open_brackets == "([("
    tracker.advance(b"1)")
    assert tracker.context().open_brackets == "(["
    tracker.advance(b"], ")
    assert tracker.context().open_brackets == "("


def test_the_sent_context_wins_until_something_is_written() -> None:
    sent = Cursor(Context.IMPORT, "(", 4)
    tracker = ContextTracker("python", b"x = 1\n", sent=sent)
    assert tracker.context() == sent
    tracker.advance(b"y = ")
    assert tracker.context().context is Context.OPERATOR


def test_without_a_grammar_the_sent_cursor_holds_until_something_is_written() -> None:
    sent = Cursor(Context.COMMENT, "(", 2)
    tracker = ContextTracker("cobol", b"", sent=sent)
    assert tracker.context() == sent
    tracker.advance(b"x")
    assert tracker.context() == Cursor()
