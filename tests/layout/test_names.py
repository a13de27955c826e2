"""Nothing is installed by the name `codespec`, which is unregistered on the package index and open to anyone."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A command ends at a line's end, a backtick, a semicolon or a pipe.
INSTALL = re.compile(r"\b(?:pip3?|pipx|uv tool|uv)[\"', ]+(?:install|download|wheel)\b([^\n`;|]*)|\buvx([^\n`;|]*)")
NAME = re.compile(r"codespec(?:\[[\w, -]*\])?(?:[=<>~!@].*|[\"'\]]*)", re.IGNORECASE)
QUOTES = "\"'\\(),"
PIP = "pip inst" + "all"  # split, so that this file does not match


def by_name(text: str) -> list[str]:
    """Return the commands in a text that install codespec by name."""
    found = []
    for match in INSTALL.finditer(text):
        words = (match[1] or match[2] or "").split()
        if any(NAME.fullmatch(word.strip(QUOTES)) for word in words):
            found.append(match[0].strip())
    return found


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_installs_codespec_by_its_name() -> None:
    found = []
    for path in tracked():
        content = path.read_bytes()
        if b"\0" not in content[:8192]:
            found += [(str(path.relative_to(ROOT)), each) for each in by_name(content.decode(errors="replace"))]
    assert not found


def test_vs_code_installs_what_it_carries_unless_told_otherwise() -> None:
    package = json.loads((ROOT / "editors/vscode/package.json").read_text(encoding="utf-8"))
    assert package["contributes"]["configuration"]["properties"]["codespec.installFrom"]["default"] == ""


@pytest.mark.parametrize(
    ("command", "caught"),
    [
        (f"{PIP} codespec", True),
        (f'run `{PIP} "codespec[engine]"`', True),
        (f"{PIP} --upgrade codespec[engine,dev]==0.1", True),
        (f'"{PIP} \\"codespec[engine]\\"",', True),
        ("pipx inst" + "all codespec", True),
        ("uv tool inst" + "all codespec", True),
        ("uv" + "x codespec lsp", True),
        ('["-m", "pip", "inst' + 'all", "codespec"]', True),
        (f"run `{PIP} .[engine]` in codespec's checkout", False),
        (f"{PIP} /path/to/codespec[engine]", False),
        (f"{PIP} ./codespec", False),
        (f"{PIP} codespec-0.1.0-py3-none-any.whl", False),
        (f"{PIP} .  # in codespec's checkout", False),
    ],
)
def test_the_rule_itself(command: str, caught: bool) -> None:
    assert bool(by_name(command)) == caught


@pytest.mark.parametrize("package", ["lab", "weights"])
def test_no_package_of_ours_is_needed_by_name(package: str) -> None:
    """pip would look up the name on an index and might install a stranger's package."""
    project = tomllib.loads((ROOT / package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert not [needed for needed in project.get("dependencies", []) if needed.startswith("codespec")]
