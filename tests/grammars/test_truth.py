"""Comments, strings and docstrings, compared with Python's own tokenizer on its library at random positions."""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import random
import tokenize
import typing
from types import ModuleType

import pytest
from codespec_grammars import ContextTracker

TEXT = ("comment", "string", "docstring")


def documented_lines(source: str) -> set[int]:
    """Return the lines on which a docstring begins."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds) and ast.get_docstring(node)]
    return {node.body[0].lineno for node in nodes}


def truth(source: str) -> list[str]:
    """Return each character's kind: "" for code, "?" if it is a matter of definition (quotes, f-strings)."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found, documented = [""] * (len(source) + 1), documented_lines(source)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        start = starts[token.start[0] - 1] + token.start[1]
        end = starts[token.end[0] - 1] + token.end[1]
        if token.type == tokenize.COMMENT:
            found[start + 1 : end + 1] = ["comment"] * (end - start)
        elif token.type == tokenize.STRING:
            kind = "docstring" if token.start[0] in documented else "string"
            marked = ["?"] * 4 + [kind] * (end - start - 7) + ["?"] * 4
            quoted = token.string[0] in "\"'" and end - start > 8
            found[start : end + 1] = marked if quoted else ["?"] * (end + 1 - start)
        elif tokenize.tok_name[token.type].startswith("FSTRING"):
            found[start : end + 2] = ["?"] * (end + 2 - start)
    return found


@pytest.mark.parametrize("module", [argparse, inspect, typing], ids=lambda module: module.__name__)
def test_agreement(module: ModuleType) -> None:
    source = inspect.getsource(module)
    assert source.isascii()
    wanted, text, chance = truth(source), source.encode(), random.Random(0)
    places = [at for at in chance.sample(range(len(source)), 150) if wanted[at] != "?"]
    for gap in (0, 60, len(text)):
        wrong = []
        for at in places:
            context = ContextTracker("python", text[:at], text[at + gap :]).context().context.value
            if (context if context in TEXT else "") != wanted[at]:
                wrong.append((at, wanted[at], context))
        assert len(wrong) <= 0.02 * len(places), (gap, wrong)
