"""Check that every error message in codespec's source is one sentence with a remedy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from codespec import errors

ROOT = Path(__file__).resolve().parents[2]
TREE = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
PARTS = {"Fault": slice(1, 3), "RequestError": slice(0, 1), "ServeError": slice(0, 1)}  # arguments with the message
# `wrong: fix`, `wrong; fix`, or a sentence that names what is allowed.
FIX = re.compile(r"[:;,] |must be|is not (one of|true or false|x\.$)")
SPLIT = [f"codespec/{room}" for room in ("store", "contract", "client", "engine", "startup")] + ["lsp/codespec_lsp"]
WRAPPED = re.compile(r"x \(")  # a sentence from another function, and a detail


def literal(node: ast.expr) -> str | None:
    """Return the text of a plain or formatted string with values as `x`, or None if it is computed elsewhere."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
    return None


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Return line and text of each literal message passed to an error in the tree."""
    for node in ast.walk(ast.parse(source)):
        name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and node.args and name in {"Fault", *TREE}:
            text, *fix = (literal(part) for part in node.args[PARTS.get(name, slice(0, 2))])
            if text is not None and not WRAPPED.match(text):
                yield node.lineno, ": ".join([text, *(part or "x" for part in fix)])


def faults(text: str) -> list[str]:
    """Return the reasons why a message is not one sentence with a remedy."""
    found = []
    if "\n" in text or re.search(r"[.!?]\s+[A-Z]", text):
        found.append("more than one sentence")
    if len(text.split()) < 4:
        found.append("too short to say what is wrong and how to fix it")
    if not FIX.search(text):
        found.append("no fix: write `what is wrong: how to fix it`")
    return found


def test_every_message_is_one_sentence_with_the_fix() -> None:
    bad = [
        f"{path.relative_to(ROOT)}:{line}: {', '.join(faults(text))}: {text}"
        for path in sorted((ROOT / "codespec").rglob("*.py"))
        for line, text in messages(path.read_text(encoding="utf-8"))
        if faults(text)
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("x holds no tokenizer.json: give a complete model folder", True),
        ("The corpus x is empty; run `codespec train corpus` first.", True),
        ("Bad value. Try again: use 3.", False),
        ("it failed: \nmend it somehow", False),
        ("no: bad", False),
        ("x must be above 0.", True),
        ("x = x is not a number.", False),
        ("the folder x cannot be read", False),
    ],
)
def test_the_rule_itself(text: str, good: bool) -> None:
    source = f"def f(path):\n    raise ModelError(f{text.replace('x', '{path}')!r})"
    assert [not faults(found) for _, found in messages(source)] == [good]


def without_fix(source: str) -> Iterator[tuple[int, str]]:
    """Return line and text of each error raised with a whole sentence, whose fix `doctor --json` can't report apart."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"Fault", *TREE}):
            continue
        parts = node.args[PARTS.get(node.func.id, slice(0, 2))]
        text = literal(parts[0]) if parts else None
        if text is None or "must be" in text:  # which says what to send
            continue
        if len(parts) < 2 and not any(word.arg == "fix" for word in node.keywords):
            yield node.lineno, text


@pytest.mark.parametrize("room", SPLIT)
def test_every_error_gives_its_fix_apart(room: str) -> None:
    bad = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for line, text in without_fix(path.read_text(encoding="utf-8"))
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    ("call", "good"),
    [
        ("ModelError(f'{x} is broken: fetch it.')", False),
        ("RequestError('x is broken: mend it.', 'x')", False),
        ("Fault('broken', 'x is broken')", False),
        ("ModelError(f'{x} is broken', 'fetch it')", True),
        ("DaemonError('x is broken', fix='fetch it')", True),
        ("DaemonError(error.fault)", True),
    ],
)
def test_the_rule_on_fixes(call: str, good: bool) -> None:
    assert (not [*without_fix(f"raise {call}")]) == good


@pytest.mark.parametrize("call", ["ModelError('x is broken', 'fetch it')", "Fault('broken', 'x is broken', fix())"])
def test_the_parts_of_a_message(call: str) -> None:
    assert [faults(found) for _, found in messages(f"raise {call}")] == [[]]


def test_all_errors_are_of_one_tree() -> None:
    for name in TREE:
        assert issubclass(getattr(errors, name), errors.CodespecError)
