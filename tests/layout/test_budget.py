"""Every package keeps within its budget of code lines: the table `[tool.codespec.budget]` in pyproject.toml.

A budget falls when code is deleted. It rises only with a line in the commit message that says what users get for it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUDGET: dict[str, int] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["codespec"]["budget"]
TOP = "codespec/*.py"  # the modules that belong to no package
SLACK = 0.02  # a budget that is further above the code than this is lowered
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
COMMENT_IN_C = re.compile(r"""//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')""", re.DOTALL)


def python_lines(text: str) -> int:
    """Count the lines that hold code: no blank lines, comments or docstrings."""
    lines = {n for n, line in enumerate(text.split("\n"), 1) if line.strip() and not line.lstrip().startswith("#")}
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.lineno != node.end_lineno:
            lines.update(_lines_of(node))  # a text's blank lines, and those that look like comments
        elif isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstrings.update(_lines_of(node.body[0]))
    return len(lines - docstrings)


def _lines_of(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def c_lines(text: str) -> int:
    """Count the lines of C that hold code: no blank lines or comments."""
    bare = COMMENT_IN_C.sub(lambda match: match[1] or "\n" * match[0].count("\n"), text)
    return sum(bool(line.strip()) for line in bare.splitlines())


COUNT = {".py": python_lines, ".c": c_lines, ".h": c_lines}


def sources() -> list[Path]:
    """Return the checkout's Python and C files."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *(f"*{kind}" for kind in COUNT)]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in filter(None, listed.split("\0")) if (ROOT / name).is_file()]


def package_of(path: Path) -> str | None:
    """Return the budget's row for a file: the longest folder that is named, or None."""
    if path.parent == Path("codespec"):
        return TOP
    return next((str(folder) for folder in path.parents if str(folder) in BUDGET), None)


def code_lines() -> dict[str, int]:
    """Count the lines of code in each row of the budget."""
    counts = dict.fromkeys(BUDGET, 0)
    for path in sources():
        if row := package_of(path):
            counts[row] += COUNT[path.suffix]((ROOT / path).read_text(encoding="utf-8"))
    return counts


@pytest.fixture(scope="module")
def counts() -> dict[str, int]:
    return code_lines()


@pytest.mark.parametrize("row", BUDGET)
def test_package_is_within_its_budget(row: str, counts: dict[str, int]) -> None:
    lines, budget = counts[row], BUDGET[row]
    assert lines <= budget, f"{row} has {lines} lines of code, {lines - budget} above its budget: delete before you add"
    assert lines >= budget * (1 - SLACK) - 10, f"{row} has {lines} lines of code: lower its budget of {budget} to that"


def test_every_source_has_a_budget() -> None:
    exempt = {"conftest.py", "docs/example.py", "weights/codespec_weights/__init__.py"}
    assert [str(path) for path in sources() if package_of(path) is None and str(path) not in exempt] == []


def test_comments_docstrings_and_blank_lines_do_not_count() -> None:
    code = '"""Doc\nstring."""\n\n# comment\nx = """two\nlines"""\n\n\ndef f():\n    """Doc."""\n    return  # why\n'
    assert python_lines(code) == 4
    assert c_lines('/* two\n lines */\nint f(void) { // why\n  return g("// no comment");\n\n}\n') == 3
