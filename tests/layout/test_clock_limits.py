"""No test says how fast a machine is: it counts, looks at the order, or compares two times of one run.

Limits after which a wait counts as hanging are generous; below MIN_HANG seconds a busy machine would reach them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [ROOT / "tests", ROOT / "lab/tests", ROOT / "native/tests", *ROOT.glob("plugins/*/tests")]
FILES = sorted(file for folder in FOLDERS for file in folder.rglob("*.py"))
KINDS = ("monotonic", "perf_counter", "process_time", "thread_time")
CLOCKS = {*KINDS, *(f"{kind}_ns" for kind in KINDS)}
WAITS = {"wait_for", "timeout"}  # functions with a limit
WORDS = CLOCKS | WAITS
MIN_HANG = 30
UPPER = {ast.Lt: "right", ast.LtE: "right", ast.Gt: "left", ast.GtE: "left"}  # side of a limit
BINDS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)


def names(node: ast.AST) -> set[str]:
    """Return all names and attributes in an expression."""
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def bound(target: ast.expr) -> set[str]:
    """Return the names that an assignment to `target` binds or changes."""
    if isinstance(target, ast.Tuple | ast.List):
        return {name for each in target.elts for name in bound(each)}
    if isinstance(target, ast.Attribute):
        return {target.attr}
    return bound(target.value) if isinstance(target, ast.Subscript | ast.Starred) else names(target)


def timed_names(tree: ast.AST) -> set[str]:
    """Return the clocks, and the names of variables and functions whose values are computed from one."""
    timed = set(CLOCKS)
    while True:
        more = set[str]()
        for node in ast.walk(tree):
            if isinstance(node, BINDS) and node.value is not None and names(node.value) & timed:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                more |= {name for target in targets for name in bound(target)}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
                more |= names(node.func.value) if any(names(each) & timed for each in node.args) else set()
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value]
                more |= {node.name} if any(names(each) & timed for each in returned) else set()
        if more <= timed:
            return timed
        timed |= more


def numbers(tree: ast.Module) -> dict[str, float]:
    """Return a module's constants that are numbers."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(value := node.value, ast.Constant):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and isinstance(value.value, int | float):
                found[target.id] = float(value.value)
    return found


def number(node: ast.expr | None, known: dict[str, float]) -> float | None:
    """Return the value of a literal, a constant, or a product or sum of them; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Add | ast.Div):
        left, right = number(node.left, known), number(node.right, known)
        if left is not None and right is not None:
            return {ast.Mult: left * right, ast.Add: left + right}.get(type(node.op), left)
    return None


def limits(tree: ast.Module) -> Iterator[tuple[int, float]]:
    """Yield the line and the seconds of each limit on a time."""
    timed, known = timed_names(tree), numbers(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for operator, left, right in zip(node.ops, sides, sides[1:], strict=False):
                limit, value = (right, left) if UPPER.get(type(operator)) == "right" else (left, right)
                seconds = number(limit, known)
                if type(operator) in UPPER and names(value) & timed and seconds is not None:
                    yield node.lineno, seconds
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and isinstance(node.left, ast.Call):
            seconds = number(node.right, known)
            if names(node.left.func) & CLOCKS and seconds is not None:  # the end of a wait
                yield node.lineno, seconds
        elif isinstance(node, ast.Call) and (names(node.func) & WAITS):
            for argument in (*node.args, *(each.value for each in node.keywords if each.arg in ("timeout", "seconds"))):
                seconds = number(argument, known)
                if seconds is not None:
                    yield node.lineno, seconds


def test_no_limit_on_a_time_but_for_hanging() -> None:
    found = []
    for file in FILES:
        text = file.read_text("utf-8")
        if any(word in text for word in WORDS):
            name = file.relative_to(ROOT)
            found += [f"{name}:{line}: {most:g} s" for line, most in limits(ast.parse(text)) if most < MIN_HANG]
    assert not found, "compare with another time of the same run, or count"


@pytest.mark.parametrize(
    ("text", "caught"),
    [
        ("began = time.monotonic()\nassert time.monotonic() - began < 2\n", True),
        ("MAX = 5\nbegan = perf_counter()\nspent = perf_counter() - began\nassert 2 * MAX >= spent\n", True),
        ("def spent():\n    return process_time()\nassert spent() <= 0.5\n", True),
        ("def f():\n    self.slowest = max(self.slowest, monotonic() - began)\nassert other.slowest < 1\n", True),
        ("at = []\nat.append(time.monotonic())\nassert at[1] - at[0] < 3\n", True),
        ("end = time.monotonic() + 5\n", True),
        ("assert wait_for(lambda: done, 3)\n", True),
        ("async with asyncio.timeout(3):\n    pass\n", True),
        ("end = time.monotonic() + 60\nassert time.monotonic() < end\n", False),
        ("short, long = least(f), least(g)\nassert long < 16 * short + 0.1\n", False),
        ("at = []\nat.append(time.monotonic())\nassert at[1] - at[0] >= 0.05\n", False),
        ("assert wait_for(lambda: done)\n", False),
    ],
)
def test_what_is_a_limit(text: str, caught: bool) -> None:
    assert any(seconds < MIN_HANG for _, seconds in limits(ast.parse(text))) is caught
