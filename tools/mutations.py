"""Generate small faults in Python source, each as one text replacement so that reports are readable.

A fault negates a condition, changes a comparison or `and`, is off by one, drops a call or swaps a constant.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

COMPARISONS = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "is": "is not",
    "is not": "is",
    "in": "not in",
    "not in": "in",
}
MOST_SHOWN = 60  # characters
FAR = 1000  # factor for a module's constant, so that a limit no longer limits


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """One fault: the text to replace in a file (offsets in bytes), and its replacement."""

    file: str
    start: int
    end: int
    kind: str
    before: str
    after: str
    line: int

    @property
    def name(self) -> str:
        """Kind of the fault, with the text before and after."""
        before, after = (" ".join(text.split())[:MOST_SHOWN] for text in (self.before, self.after))
        return f"{self.kind}: {before} → {after}"

    def planted(self, source: bytes) -> bytes:
        """Return the source with the fault in it."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    def compiles(self, source: bytes) -> bool:
        """Return whether the source still compiles with the fault; if not, no test is needed."""
        try:
            compile(self.planted(source), self.file, "exec")
        except SyntaxError:
            return False
        return True


def find_mutants(file: str, source: bytes) -> list[Mutant]:
    """Return all faults of a file, in order. A few may not compile."""
    finder = _Finder(file, source)
    finder.visit(ast.parse(source))
    return sorted(set(finder.found))


class _Finder(ast.NodeVisitor):
    """Visitor that collects the faults of a module.

    It skips f-strings, whose inner nodes have no positions of their own in every Python; annotations, which decide
    nothing; decorators, which mostly declare (a frozen dataclass shows only on a write); and the `strict=` of zip,
    which shows only together with another fault.
    """

    def __init__(self, file: str, source: bytes) -> None:
        self.found: list[Mutant] = []
        self._file, self._source = file, source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._depth = 0

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip f-strings."""

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Visit a function without its annotations and decorators."""
        self._depth += 1
        for part in (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body):
            self.visit(part)
        self._depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Visit the body of a class."""
        for part in node.body:
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Visit the value of an annotated assignment."""
        if node.value is not None:
            self._constant_of_module(node.value)
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Visit an assignment, which may be a module constant."""
        self._constant_of_module(node.value)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        """Negate the condition of an `if`."""
        if _is_for_types(node.test):
            return
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        """Negate the condition of a `while`."""
        if not isinstance(node.test, ast.Constant):
            self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Negate the condition of a conditional expression."""
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Negate the conditions of a comprehension."""
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Swap the operator of a comparison with two operands."""
        if len(node.ops) == 1:
            self._turn(node.left, node.comparators[0], COMPARISONS, "comparison")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Swap the first `and` or `or`."""
        self._turn(node.values[0], node.values[1], {"and": "or", "or": "and"}, "and/or")
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        """Visit the value of a keyword argument, except `strict`."""
        if node.arg != "strict":
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Drop a call made for its effect."""
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(value, ast.Call) and self._depth:
            self._replace(node, "pass", "call dropped")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Flip a boolean, or increment a number in a function."""
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value), "constant")
        elif isinstance(node.value, int) and self._depth:
            self._replace(node, str(node.value + 1), "one off")

    def _constant_of_module(self, value: ast.expr) -> None:
        if self._depth or not isinstance(value, ast.Constant) or type(value.value) not in (int, float):
            return
        assert isinstance(value.value, int | float)
        self._replace(value, repr(value.value * FAR or 1), "constant")

    def _negate(self, test: ast.expr) -> None:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self._replace(test, self._text(*self._span(test.operand)), "negated")
        else:
            self._replace(test, f"not ({self._text(*self._span(test))})", "negated")

    def _turn(self, left: ast.expr, right: ast.expr, words: dict[str, str], kind: str) -> None:
        """Replace the operator between two operands."""
        start, end = self._span(left)[1], self._span(right)[0]
        text = self._text(start, end)
        word = " ".join(text.replace("(", " ").replace(")", " ").split())
        at = text.find(word)
        if word in words and at >= 0:  # otherwise there is a comment or line break
            begin = start + len(text[:at].encode())
            self._add(begin, begin + len(word), words[word], kind)

    def _replace(self, node: ast.expr | ast.stmt, after: str, kind: str) -> None:
        self._add(*self._span(node), after, kind)

    def _add(self, start: int, end: int, after: str, kind: str) -> None:
        line = self._source.count(b"\n", 0, start) + 1
        self.found.append(Mutant(self._file, start, end, kind, self._text(start, end), after, line))

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, start: int, end: int) -> str:
        return self._source[start:end].decode()


def _is_for_types(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"
