"""No import cycles, even within a package; imports inside functions and for types count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (ROOT / "codespec", ROOT / "grammars" / "codespec_grammars")  # the language server still has a cycle


def modules(folder: Path) -> Iterator[tuple[str, Path]]:
    """Return each module's name and file."""
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported(source: str, known: Mapping[str, Path]) -> set[str]:
    """Return the known modules that a source imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None and not node.level, "imports are absolute"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in names}
    return found & known.keys()


def circle(files: Mapping[str, Path]) -> list[str]:
    """Return a cycle of modules with the first repeated at the end, or []."""
    graph = {name: imported(path.read_text(encoding="utf-8"), files) - {name} for name, path in files.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def may_circle(name: str) -> bool:
    """Allow the engine and its loader to import each other, and the package's entry point to name the engine."""
    return name == "codespec" or name.startswith("codespec.engine.")


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_no_module_imports_itself_by_way_of_others(folder: Path) -> None:
    files = {name: path for name, path in modules(folder) if not may_circle(name)}
    assert len(files) >= 8 and circle(files) == []


@pytest.mark.parametrize("line", ["import toy.a", "from toy import a", "def late():\n    from toy.a import f"])
def test_the_rule_itself(line: str, tmp_path: Path) -> None:
    toy = tmp_path / "toy"
    toy.mkdir()
    (toy / "__init__.py").touch()
    (toy / "a.py").write_text("from toy.b import g\n")
    (toy / "b.py").write_text("import sys\n")
    assert circle(dict(modules(toy))) == []
    (toy / "b.py").write_text(line + "\n")
    assert set(circle(dict(modules(toy)))) == {"toy.a", "toy.b"}
