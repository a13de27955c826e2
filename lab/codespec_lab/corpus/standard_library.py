"""The parts of the standard library that no shipped model was trained on, as texts for evaluation."""

from __future__ import annotations

import sysconfig
from pathlib import Path

# No shipped model was trained on these packages, which training excludes: the list may only grow.
HELD_OUT_STDLIB = ("asyncio", "email", "xml", "unittest")
_TESTS = {"test", "tests", "__pycache__"}


def held_out_files() -> list[tuple[str, Path]]:
    """Return the held-out files with their paths relative to the standard library, in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    return [
        (str(path.relative_to(root)), path)
        for name in HELD_OUT_STDLIB
        for path in sorted((root / name).rglob("*.py"))
        if not _TESTS & set(path.relative_to(root).parts)
    ]
