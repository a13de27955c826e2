"""Text on which no bundled model was trained: some packages of the running interpreter's standard library.

Benchmarks and tests take their prompts from these, and training excludes them, so the list may only grow.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

HELD_OUT_STDLIB = ("asyncio", "email", "xml", "unittest")
_SKIPPED = {"test", "tests", "__pycache__"}


def held_out_files() -> list[tuple[str, Path]]:
    """Return the held-out files with their paths relative to the standard library, in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    return [
        (str(path.relative_to(root)), path)
        for name in HELD_OUT_STDLIB
        for path in sorted((root / name).rglob("*.py"))
        if not _SKIPPED & set(path.relative_to(root).parts)
    ]
