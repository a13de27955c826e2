"""The cost of a decision is bounded in bytes for any file: many lines, one line, invalid UTF-8, an open quote."""

from __future__ import annotations

import inspect
import typing

import pytest
from codespec_grammars import ContextTracker, grammar, workers

# Both windows, the heads of open constructs, the placeholder and closers.
MAX_BYTES = grammar.PARSED + grammar.AFTER + 512
CODE = inspect.getsource(typing).encode()
HOSTILE = {
    "100,000 lines": b"x = call(1, 2)\n" * 100_000,
    "real code of 30,000 lines": CODE * 10,
    "one function of 30,000 lines": b"def f():\n" + b"    x = call(1, 2)\n" * 30_000,
    "a line of 1 MB": b"x = [" + b"'text', call(1), " * 60_000,
    "a line of 1 MB of brackets": b"([{" * 350_000,
    "a line of 1 MB of quotes": b"'\"" * 500_000,
    "no UTF-8": bytes(range(1, 256)) * 2_000,
    "an unclosed triple quote at the top": b'"""\n' + CODE.replace(b'"""', b"") * 3,
    "empty lines": b"\n" * 200_000,
    "NUL": b"\0" * 20_000,
}


def decide(prefix: bytes, suffix: bytes, language: str = "python") -> list[int]:
    """Return the bytes parsed for each of a few decisions."""
    tracker, costs, before = ContextTracker(language, prefix, suffix), [], 0
    for piece in (b"", b"a", b" = b(", b"1", b"\n", b"    ", b"'x", b"'"):
        tracker.advance(piece)
        tracker.context()
        costs.append(tracker.bytes_parsed - before)
        before = tracker.bytes_parsed
    return costs


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("language", ["python", "typescript", "cpp"])
def test_bytes_parsed_are_bounded(name: str, language: str) -> None:
    text = HOSTILE[name]
    half = len(text) // 2
    assert max(decide(text, b"", language) + decide(text[:half], text[half:], language)) <= MAX_BYTES


def test_an_answer_is_not_worked_out_twice() -> None:
    tracker = ContextTracker("python", CODE)
    tracker.context()
    parsed = tracker.bytes_parsed
    assert tracker.context() == tracker.context()
    assert tracker.bytes_parsed == parsed


def test_the_cost_does_not_grow_with_the_file() -> None:
    head, item = b"def first():\n    pass\n\n\n", b"def f(a):\n    return a\n\n\n"
    costs = [decide(head + item * count + b"def g(b):\n    x", b"\n\n" + item * count) for count in (200, 20_000)]
    assert costs[0] == costs[1] and costs[0][0] < 1024


def test_where_no_tree_is_had_the_lexer_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "look_up", lambda *_: None)
    for text, context in [
        (b"x = 1  # a rem", "comment"),
        (b"def f():\n    '''Says", "docstring"),
        (b"x = ['a", "string"),
        (b"from os import (\n    path,\n    ", "import"),
        (b"def f(a, ", "signature"),
        (b"x = call(a, ", "arguments"),
        (b"x = call(a)", "closing"),
        (b"if x:", "block_start"),
        (b"x = ", "operator"),
        (b"x = y.", "identifier"),
        (b"if x:\n    ", "indent"),
        (b"return ", "statement"),
    ]:
        assert ContextTracker("python", text).context().context == context, text


def test_dense_clean_code_is_parsed_to_its_end() -> None:
    text = HOSTILE["one function of 30,000 lines"]
    for cut in (len(text), len(text) // 2):
        tracker = ContextTracker("python", text[:cut], text[cut:])
        tracker.context()
        assert tracker.bytes_parsed and not tracker.given_up
