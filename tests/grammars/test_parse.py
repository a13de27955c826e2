"""The sliced, incremental parser: the same trees as in one go and from nothing, and an end to what takes too long."""

from __future__ import annotations

import inspect
import random
import typing

import pytest
from codespec_grammars import ContextTracker, parse
from codespec_grammars.registry import Grammar, load_grammar

CODE = inspect.getsource(typing).encode()


@pytest.fixture
def python() -> Grammar:
    grammar = load_grammar("python")
    assert isinstance(grammar, Grammar)
    return grammar


def test_slices_give_the_tree_of_one_go(python: Grammar, monkeypatch: pytest.MonkeyPatch) -> None:
    text = CODE[:6000]
    whole = parse.SlicedParser(python.language).parse(text, 100, None)
    monkeypatch.setattr(parse, "SLICE", 1)
    pauses: list[float] = []
    monkeypatch.setattr(parse.time, "sleep", pauses.append)
    sliced = parse.SlicedParser(python.language).parse(text, 100, None)
    assert whole and sliced and str(whole.tree.root_node) == str(sliced.tree.root_node)
    assert len(pauses) >= 10


def test_a_parse_that_takes_too_long_is_given_up(python: Grammar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "SLICE", 1)
    monkeypatch.setattr(parse, "MOST_STEPS", 2)
    parser = parse.SlicedParser(python.language)
    assert parser.parse(CODE[:6000], 100, None) is None and parser.given_up == 1
    assert parser.parse(b"x = 1\n", 3, None) is not None


def test_an_edit_anywhere_gives_the_tree_of_a_fresh_parse(python: Grammar) -> None:
    chance, parser = random.Random(0), parse.SlicedParser(python.language)
    for _ in range(40):
        text = CODE[: chance.randrange(3000, 5000)].rpartition(b"\n")[0] + b"\n"
        old = parser.parse(text, len(text) - 40, None)
        lines = text.splitlines(keepends=True)
        lines.insert(chance.randrange(len(lines)), b"\n")
        new = b"".join([*lines[:-3], b"added = 1\n", *lines[-3:]])
        edited, fresh = parser.parse(new, len(new) - 40, old), parser.parse(new, len(new) - 40, None)
        assert edited and fresh and _shape(edited.tree.root_node) == _shape(fresh.tree.root_node)


def _shape(node: object) -> list[tuple[str, int, int]]:
    """Every node with its place: an edit told wrongly leaves nodes where they were."""
    found, rest = [], [node]
    while rest:
        one = rest.pop()
        found.append((one.type, one.start_byte, one.end_byte))  # type: ignore[attr-defined]
        rest.extend(one.children)  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_a_string_that_goes_on_after_a_backslash(newline: bytes) -> None:
    prefix = b"first = 1" + newline + b"x = 'some text \\"
    tracker = ContextTracker("python", prefix)
    for piece in (newline, b"and", b" more(", b"' + "):
        prefix += piece
        tracker.advance(piece)
        assert tracker.context() == ContextTracker("python", prefix).context()
    tracker.rollback(len(newline) + 3)
    assert tracker.context().context == "string"
