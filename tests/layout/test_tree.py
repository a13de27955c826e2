"""Rules of the tree that no linter checks: sizes, docstrings, forbidden words, nothing specific to one machine."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ("scale", "upstream", "vllm")
CODE = (
    "codespec",
    "lsp",
    "grammars",
    "lab/codespec_lab",
    *(f"plugins/{name}/codespec_{name}" for name in PLUGINS),
    "native/codespec_native",
    "tools",
)
SOURCES = [path for name in CODE for path in sorted((ROOT / name).rglob("*.py"))]
TESTED = ("tests", "lab/tests", "native/tests", *(f"plugins/{name}/tests" for name in PLUGINS))
TESTS = [path for name in TESTED for path in sorted((ROOT / name).rglob("*.py"))]
MAX_FILE, MAX_FUNCTION = 400, 50
BANNED_MODULES = {"utils", "util", "helpers", "helper", "common", "misc"}
BANNED_NAME = re.compile(r"Manager|Helper|^Base[A-Z]|Utils?$")
# Split, so that this line does not match.
MACHINE = re.compile(r"(?<![\w.])/(?:" + "|".join(["wo" + "rk", "ro" + "ot", "ho" + "me", "tm" + "p"]) + r")/\w")
# Allowed only with a reason on the same line.
BROAD_EXCEPT = re.compile(r"except\s*(?:BaseException|Exception)?\s*(?:as \w+)?:(?!  # \w+ \w+[: ])")


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def functions(path: Path) -> list[tuple[str, int]]:
    """Return a file's functions with their numbers of lines."""
    return [
        (node.name, (node.end_lineno or 0) - node.lineno + 1)
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_module(path: Path) -> None:
    text, tree = path.read_text(encoding="utf-8"), parse(path)
    assert ast.get_docstring(tree), "a module without a docstring"
    assert path.stem not in BANNED_MODULES
    assert not MACHINE.search(text), "a path of one machine"
    assert not BROAD_EXCEPT.search(text), "a broad except without its reason"
    classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert not [name for name in classes if BANNED_NAME.search(name)]
    if any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body):
        assert "from __future__ import annotations" in text
    guards = [node for node in tree.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)]
    assert guards in ([], tree.body[-1:]), "a module run as a program ends at its guard: what follows is not defined"


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=name_of)
def test_sizes(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= MAX_FILE, f"{lines} lines: split it by noun"
    for name, length in functions(path):
        assert length <= MAX_FUNCTION, f"{name} is {length} lines long"


def test_median_function_is_small() -> None:
    lengths = sorted(length for path in SOURCES for _, length in functions(path))
    assert lengths[len(lengths) // 2] <= 10
