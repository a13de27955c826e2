"""The file that a long bench grows: a section a target size, pass after pass, each written at once.

A section goes on only where its configuration and the code are what they were. Knows files and JSON; knows no meaning
of a figure.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import codespec
from codespec.errors import ConfigError

PACKAGE = Path(codespec.__file__).parent
UNMEASURED = ("server", "cli", "starter")  # parts of the package that no figure depends on; weights are named apart


class Sheet:
    """Sections of figures of `bench`; kept in `file`, or nowhere."""

    def __init__(self, file: Path | None, bench: str = "decode") -> None:
        self.file = file
        self.values: dict[str, Any] = {"bench": bench, "sections": {}}
        if file is not None and file.exists():
            self.values = _read(file, bench)

    def section(self, name: str, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """The section of that name, begun or gone on with. ConfigError where it was measured otherwise."""
        sections = self.values["sections"]
        code = code_digest()
        found: dict[str, Any] = sections.setdefault(
            name, {"configuration": dict(configuration), "code": code, "passes": []}
        )
        before = {**found["configuration"], "code": found["code"]}
        now = json.loads(json.dumps({**configuration, "code": code}))
        changed = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
        if changed:
            raise ConfigError(
                f"{self.file} holds figures of {name} that were measured with another {', '.join(changed)}: name "
                "another --json file, or delete this one."
            )
        return found

    def write(self) -> None:
        """Replaces the file at once, so that an interruption leaves the last whole state. ConfigError if it can't."""
        if self.file is None:
            return
        beside = self.file.with_name(f"{self.file.name}.{os.getpid()}.part")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps(self.values) + "\n", encoding="utf-8")
            beside.replace(self.file)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise ConfigError(
                f"The figures can't be written to {self.file} ({error.strerror}): choose another place."
            ) from error


def condensed(found: Mapping[str, Any]) -> dict[str, Any]:
    """A bench's figures as documents keep them: without single passes, four digits a figure."""
    kept = {name: _without_passes(value) if name == "sections" else value for name, value in found.items()}
    rounded: dict[str, Any] = _rounded(kept)
    return rounded


def _without_passes(sections: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {key: value for key, value in section.items() if key != "passes"} for name, section in sections.items()
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(inside) for key, inside in value.items()}
    return [_rounded(inside) for inside in value] if isinstance(value, list | tuple) else value


def code_digest() -> str:
    """Names the code that figures depend on: a commit may be of the documentation only, and work may be uncommitted."""
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(PACKAGE.rglob("*.py")):
        inside = file.relative_to(PACKAGE)
        if inside.parts[0] not in UNMEASURED:
            digest.update(f"{inside.as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def commit_name() -> str:
    """The checkout's commit, "+" behind it where files differ; "" where there is no checkout."""
    words = ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.stdout.strip() if said.returncode == 0 else ""


def _read(file: Path, bench: str) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if values["bench"] != bench or not isinstance(values["sections"], dict):
            raise ValueError("other figures")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{file} holds no figures of `codespec bench {bench}` ({error}): name another --json file."
        ) from error
    return values
