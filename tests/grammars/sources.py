"""Real source text of every language, for tests that need a lot of it."""

from __future__ import annotations

import inspect
import json
import typing
from functools import cache

from tests.grammars.fixtures import FOLDER

CORE = ["bash", "c", "cpp", "go", "java", "javascript", "json", "python", "rust", "tsx", "typescript"]


@cache
def source_of(language: str) -> bytes:
    """Return at least a few hundred lines: Python's own library, a generated table for JSON, else a program in
    `_programs`.
    """
    if language == "python":
        return inspect.getsource(inspect).encode() + inspect.getsource(typing).encode()
    if language == "json":
        rows = [
            {"id": n, "name": f'row "{n}"', "sizes": [n, -1.5], "next": {"of": None, "last": n > 30}} for n in range(40)
        ]
        return json.dumps({"version": 2, "rows": rows, "total": 40}, indent=2).encode()
    return next((FOLDER / "_programs").glob(f"{language}.*")).read_bytes()
