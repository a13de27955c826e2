"""The one error of this package's own data. Knows file, line and what is wrong; never raised for a user's text."""

from __future__ import annotations

from pathlib import Path


class GrammarDataError(ValueError):
    """A `language.toml` or `contexts.scm` that says something this package does not understand."""

    def __init__(self, path: Path, line: int, message: str) -> None:
        super().__init__(f"{path.parent.name}/{path.name}:{line}: {message}")
        self.path, self.line = path, line
