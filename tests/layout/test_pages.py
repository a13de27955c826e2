"""The documentation pages: links resolve, the README is short, and lists on a page match the code."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest

from codespec.cli.complete import parse_place, split_at
from codespec.text.ending import why_not
from tools import settings_page
from tools.readme_commands import commands

ROOT = Path(__file__).resolve().parents[2]
MAX_WORDS = 800  # of the README, which is only an introduction
# The pages that explain codespec, apart from tables of figures, releases, and other servers and teams.
READING_PATH = (
    "architecture",
    "clients",
    "editors",
    "faq",
    "models",
    "quickstart",
    "settings",
    "speculation",
    "troubleshooting",
)
MAX_READ = 11_500  # words of these together; 11,000 on 2026-11-26
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
FENCE = re.compile(r"^ *(`{3,})[^`]*$")
HEADING = re.compile(r"^#{1,6} (.+?)#*$")
MODULE = re.compile(r"`(codespec|codespec_lsp|codespec_grammars)(/[\w/]+)?`")
PACKAGES = {
    "codespec": "codespec",
    "codespec_lsp": "lsp/codespec_lsp",
    "codespec_grammars": "grammars/codespec_grammars",
}
PAGE = re.compile(r"(?<![\w./-])(?:[\w.-]+/)*[A-Za-z]\w*\.md\b")
OUTSIDE = {"README.md"}  # a file of every model's folder


def tracked(*patterns: str) -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


PAGES = [page for page in tracked("*.md") if "tests/grammars" not in name_of(page)]  # those are parsed, not read


def prose(text: str) -> list[str]:
    """Return a page's lines without its fenced blocks."""
    lines, fence = [], ""
    for line in text.splitlines():
        mark = FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif fence and line.strip() == fence:
            fence = ""
        elif not fence:
            lines.append(line)
    return lines


def links(text: str) -> list[str]:
    """Return the targets of a page's links and images; code spans are text."""
    return LINK.findall(re.sub(r"`[^`\n]*`", "code", "\n".join(prose(text))))


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub generates them."""
    found: Counter[str] = Counter()
    slugs = set()
    for line in prose(text):
        heading = HEADING.match(line)
        if heading:
            plain = LINK.sub(lambda link: link[0][link[0].index("[") + 1 : link[0].rindex("](")], heading[1])
            slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
            slugs.add(f"{slug}-{found[slug]}" if found[slug] else slug)
            found[slug] += 1
    return slugs


def broken(page: Path) -> list[str]:
    """Return the broken links of a page; links to other hosts are not followed."""
    there = [link for link in links(page.read_text(encoding="utf-8")) if not re.match(r"[a-z]+:", link)]
    return [link for link in there if not leads_somewhere(page, *unquote(link).partition("#")[::2])]


def leads_somewhere(page: Path, path: str, anchor: str) -> bool:
    """Return whether the file exists in the repository and has the anchor, if one is named."""
    file = page.parent / path if path else page
    if not file.exists() or ROOT not in file.resolve().parents:
        return False
    return not anchor or (file.suffix == ".md" and anchor in anchors(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert not broken(page)


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("[a](README.md)", []),
        ("[a](README.md#limits) [b](#here)\n# Here", []),
        ("[`a`](LICENSE) and [b](docs)", []),
        ("[a](none.md)", ["none.md"]),
        ("![a](none.png)", ["none.png"]),
        ("[a](README.md#nothing-here)", ["README.md#nothing-here"]),
        ("[a](#here)", ["#here"]),
        ("[a](#two-words-1)\n# Two `words`\n# Two words", []),
        ("[a](../outside.md)", ["../outside.md"]),
        ("[a](https://example.org/none.md)", []),
        ("`[a](none.md)`\n```text\n[a](none.md)\n```", []),
    ],
)
def test_the_check_itself(text: str, faults: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "LICENSE").touch()
    (tmp_path / "README.md").write_text("# Limits\n")
    page = tmp_path / "page.md"
    page.write_text(text)
    monkeypatch.setattr("tests.layout.test_pages.ROOT", tmp_path)
    assert broken(page) == faults


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= MAX_WORDS


def test_the_reading_path_is_short() -> None:
    pages = [(ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in READING_PATH]
    assert sum(len(page.split()) for page in pages) <= MAX_READ


def test_the_floors_are_those_that_lint_checks() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    drawn = page[page.index("## The floors") :].split("```text\n")[1].split("```")[0].split("\n")[:-1]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert drawn == [re.sub(r"[()]", "", layer) for layer in layers]


def test_modules_that_the_pages_name_are_there() -> None:
    missing = []
    for page in ("docs/architecture.md", "docs/speculation.md", "CONTRIBUTING.md"):
        for package, rest in MODULE.findall((ROOT / page).read_text(encoding="utf-8")):
            place = ROOT / (PACKAGES[package] + rest)
            if not place.is_dir() and not place.with_suffix(".py").is_file():
                missing.append((page, package + rest))
    assert not missing


def test_pages_that_the_code_names_are_there() -> None:
    missing = []
    for source in tracked("codespec/*.py", "lsp/*.py", "grammars/*.py", "lab/*.py", "tools/*.py", "tests/*.py"):
        if name_of(source) in OUTSIDE or source == Path(__file__).resolve():
            continue
        for page in PAGE.findall(source.read_text(encoding="utf-8")):
            if page not in OUTSIDE and not any(
                (place / page).is_file() for place in (ROOT, ROOT / "codespec", ROOT / "docs", source.parent)
            ):
                missing.append((name_of(source), page))
    assert not missing


def test_the_page_of_settings_is_written_from_their_declarations() -> None:
    texts = [page.read_text(encoding="utf-8") for page in settings_page.PAGES]
    assert [settings_page.rewritten(text) for text in texts] == texts, "run python -m tools.settings_page"
    assert sum(len(settings_page.TABLE.findall(text)) for text in texts) == len(settings_page.SCHEMAS)


@pytest.mark.parametrize("page", ["README.md", "docs/models.md", "docs/settings.md"])
def test_examples_point_at_places_where_a_completion_begins(page: str) -> None:
    for command in commands((ROOT / page).read_text(encoding="utf-8")):
        words = shlex.split(command.line, comments=True)
        if words[1:2] == ["complete"]:
            file, line, column = parse_place(words[2])
            before, after = split_at((ROOT / file).read_text(encoding="utf-8"), line, column)
            assert not why_not(None, before.encode(), after.encode()), command.line
            assert before[-1:].isalnum() and after.startswith("\n"), "the end of a line's last word"
