"""Which files are left out: secrets, the user's globs, and ignore files as git itself reads them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from codespec_lsp.exclusions import Exclusions, is_secret
from hypothesis import given, settings
from hypothesis import strategies as st

NAMES = ["a", "a", "a", "b", "b", "ab", "a.py", "b.log", "[x]", "x y", "!a", "#b"]
LINES = ["a", "/a", "a/", "*.py", "!*.py", "a/**", "**/b", "a/*/b", "!a", "?", "[ab]", "[!a]", "\\!a", "\\#b", "#b"]
LINES += [
    "/a",
    "/b",
    "/a/b",
    "a/b",
    "b/*",
    "x y",
    "x\\ y",
    "b.log  ",
    "",
    "/",
    "**",
    "a/**/b.log",
    "[",
    "[[]x]",
    "*/",
    "!/a/b/",
    "[a-b]*",
    "a\\",
]


def git(folder: Path, *words: str, text: str = "") -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], input=text, capture_output=True, encoding="utf-8", timeout=60
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "-q")
    return folder


lines = st.lists(st.sampled_from(LINES), max_size=5)
# "a" is a folder, and git looks.
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join).filter(lambda path: path != "a")


@settings(max_examples=30)
@given(top=lines, inner=lines, asked=st.lists(paths, min_size=20, max_size=30, unique=True))
def test_ignore_files_mean_what_git_says(repository: Path, top: list[str], inner: list[str], asked: list[str]) -> None:
    (repository / "a").mkdir(exist_ok=True)
    (repository / ".gitignore").write_text("\n".join(top))
    (repository / "a" / ".gitignore").write_text("\n".join(inner))
    said = git(repository, "check-ignore", "--no-index", "-z", "--stdin", text="\0".join(asked)).split("\0")
    exclusions = Exclusions()
    ours = [path for path in asked if exclusions.reason((repository / path).as_uri())]
    assert ours == [path for path in asked if path in said]


@pytest.mark.parametrize(
    "path",
    [".env", "a/.env.local", "x/KEY.PEM", "id_rsa.pub", "c:\\me\\.npmrc", "credentials", "secrets.yml", "a.kdbx"],
)
def test_secrets(path: str) -> None:
    assert is_secret(path)


@pytest.mark.parametrize("path", ["env.py", "secret.py", "a/monkey.py", "pem", "id_rs"])
def test_no_secrets(path: str) -> None:
    assert not is_secret(path)


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("file:///p/a.py", ""),
        ("untitled:Untitled-1", ""),
        ("git:/p/a.py?HEAD", "git is no file"),
        ("output:tasks", "output is no file"),
        ("file:///p/.env", ".env may hold secrets"),
        ("file:///p/gen/a.py", "codespec.exclude"),
        ("file:///p/deep/x.min.js", "codespec.exclude"),
        ("untitled:/q/x.min.js", "codespec.exclude"),
    ],
)
def test_reasons(uri: str, words: str) -> None:
    exclusions = Exclusions(["/p"])
    exclusions.set_globs(["/gen/", "*.min.js"])
    reason = exclusions.reason(uri)
    assert words in reason and bool(reason) == bool(words)


def test_codespecs_own_ignore_file_and_changes_of_it(tmp_path: Path) -> None:
    now = [0.0]
    exclusions = Exclusions([str(tmp_path)], lambda: now[0])
    file = tmp_path / "sub" / "a.py"
    assert exclusions.reason(file.as_uri()) == ""
    (tmp_path / ".codespecignore").write_text("sub/\n")
    now[0] = 10.0
    assert exclusions.reason(file.as_uri()) == "a.py is excluded by .codespecignore."
    assert exclusions.reason((tmp_path / "b.py").as_uri()) == ""


def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    assert Exclusions([str(tmp_path)]).reason(f"file://{tmp_path}/a%00b/c.py") == ""
    assert "is no file on this machine" in Exclusions().reason("C:\\a.py")
