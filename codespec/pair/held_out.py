"""Text that no shipped model was trained on: a few packages of the running interpreter's standard library.

Benchmarks and tests cut their prompts from these, and training leaves them out, so the list may only grow.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

HELD_OUT_STDLIB = ("asyncio", "email", "xml", "unittest")
_SKIPPED = {"test", "tests", "__pycache__"}


def held_out_files() -> list[tuple[str, Path]]:
    """The held-out files of the standard library, each with its path inside the library, in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    return [
        (str(path.relative_to(root)), path)
        for name in HELD_OUT_STDLIB
        for path in sorted((root / name).rglob("*.py"))
        if not _SKIPPED & set(path.relative_to(root).parts)
    ]
