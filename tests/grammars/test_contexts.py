"""Check every caret of every fixture, whole and truncated at the cursor, with each way to ask."""

from __future__ import annotations

from pathlib import Path

import pytest
from codespec_grammars import Context, ContextTracker, Cursor
from codespec_grammars.grammar import load_grammar

from tests.grammars.fixtures import Case, fixture_files, languages, read_cases
from tests.grammars.sources import CORE

# The extra `all-grammars` installs the others.
THERE = [name for name in languages() if name in CORE or load_grammar(name) is not None]
FILES = [path for language in THERE for path in fixture_files(language)]


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def ways(case: Case) -> list[tuple[str, bytes]]:
    return [("whole", case.suffix)] if case.whole else [("whole", case.suffix), ("cut", b"")]


def wrong(case: Case, cursor: Cursor) -> str:
    """Return the differences from the fixture, or ""."""
    message = [("context", case.context, cursor.context.value)]
    message += [("open", case.brackets, cursor.open_brackets)] if case.brackets is not None else []
    message += [("indent", case.indent, cursor.indent)] if case.indent is not None else []
    return ", ".join(f"{name}: want {want!r}, got {got!r}" for name, want, got in message if want != got)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_fixture(path: Path) -> None:
    found = []
    for case in read_cases(path):
        for way, suffix in ways(case):
            cursor = ContextTracker(path.parent.name, case.prefix, suffix).context()
            found += [f"{case.where} ({way}) {wrong(case, cursor)}"] if wrong(case, cursor) else []
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_typing_up_to_the_caret_gives_the_same(path: Path) -> None:
    for case in read_cases(path):
        for length in (1, 60):
            tracker = ContextTracker(path.parent.name, case.prefix[:-length], case.suffix)
            for byte in case.prefix[-length:][:3]:
                tracker.advance(bytes([byte]))
                tracker.context()
            tracker.advance(case.prefix[-length:][3:])
            assert tracker.context() == ContextTracker(path.parent.name, case.prefix, case.suffix).context(), case.where


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_sent_cursor_that_the_window_shows_changes_nothing(path: Path) -> None:
    for case in read_cases(path):
        plain = ContextTracker(path.parent.name, case.prefix, case.suffix)
        sent = ContextTracker(path.parent.name, case.prefix, case.suffix, sent=plain.context())
        for piece in (b"", b"ab", b" = (", b'"x', b"\n"):
            plain.advance(piece)
            sent.advance(piece)
            assert sent.context() == plain.context(), (case.where, piece)


@pytest.mark.parametrize("language", languages())
def test_there_are_enough_cases_and_broken_ones(language: str) -> None:
    cases = {path.stem.lower(): len(read_cases(path)) for path in fixture_files(language)}
    total, broken = sum(cases.values()), sum(count for stem, count in cases.items() if stem.startswith("broken"))
    if language in CORE:
        assert total >= 40 and broken * 3 >= total
    else:
        assert total >= 20 and broken


def test_every_context_is_expected_somewhere() -> None:
    expected = {case.context for path in FILES for case in read_cases(path)}
    assert expected == {context.value for context in Context} - {"unknown"}
