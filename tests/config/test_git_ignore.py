"""What git ignores is what `git check-ignore` says: by git itself, in repositories that may be hostile."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from codespec.exclusions import git_ignore
from codespec.exclusions.git_ignore import GitIgnore
from codespec.exclusions.ignore_files import IgnoreFiles

NAMES = ["a", "b", "ab", "a.py", "b.log", "x y", "[x]", "é.py"]
LINES = ["a", "/a", "a/", "*.py", "!*.py", "a/**", "**/b", "a/*/b", "!a", "[ab]", "b/*", "*.log", "!b.log", "x y", "*/"]
TREES = 12


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty home folder."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return folder


@pytest.fixture
def files() -> Iterator[IgnoreFiles]:
    made = IgnoreFiles()
    yield made
    made.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is excluded while git is too slow, which a busy machine makes it."""
    monkeypatch.setattr(git_ignore, "GIT_TIMEOUT_S", 600.0)


@pytest.fixture(params=["git", "pathspec"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, files: IgnoreFiles) -> IgnoreFiles:
    """With git, and without."""
    if request.param == "pathspec":
        monkeypatch.setattr(git_ignore, "find_git", lambda: "")
    return files


def git(folder: Path, *words: str, text: str = "") -> str:
    named = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    done = subprocess.run(
        ["git", *named, *words], cwd=folder, input=text, capture_output=True, encoding="utf-8", timeout=60
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def made(folder: Path, *paths: str) -> Path:
    """Return a repository with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q")
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("x = 1\n")
    return folder


def test_patterns_outside_the_tree(home: Path, tmp_path: Path, either: IgnoreFiles) -> None:
    top = made(tmp_path / "top", "a.py", "b.py", "c.py", "d.py")
    (top / ".git" / "info").mkdir(exist_ok=True)
    (top / ".git" / "info" / "exclude").write_text("a.py\n")
    (home / ".config" / "git").mkdir(parents=True)
    (home / ".config" / "git" / "ignore").write_text("b.py\n")
    assert "excluded by" in either.reason(top / "a.py", []) and "excluded by" in either.reason(top / "b.py", [])
    (home / ".gitconfig").write_text("[core]\n\texcludesFile = ~/mine\n")
    (home / "mine").write_text("c.py\n")
    assert [name for name in "abcd" if either.reason(top / f"{name}.py", [])] == ["a", "c"]
    (top / ".git" / "info" / "exclude").write_text("d.py\n")
    assert [name for name in "abcd" if either.reason(top / f"{name}.py", [])] == ["c", "d"]


def test_a_worktree_follows_the_common_folder(home: Path, tmp_path: Path, either: IgnoreFiles) -> None:
    top = made(tmp_path / "top", "a.py")
    git(top, "commit", "-q", "--allow-empty", "-m", "x")
    git(top, "worktree", "add", "-q", "../tree")
    (top / ".git" / "info" / "exclude").write_text("b.py\n")
    assert either.reason(tmp_path / "tree" / "b.py", []) and not either.reason(tmp_path / "tree" / "a.py", [])


def test_a_file_behind_links(home: Path, tmp_path: Path, either: IgnoreFiles) -> None:
    """Each path that leads to it counts: a link inside, a link from outside, and a link that is ignored itself."""
    top = made(tmp_path / "top", "private/sub/a.py", "open/b.py")
    (top / ".gitignore").write_text("private/\nmine\n")
    (top / "link").symlink_to("private/sub")
    (top / "mine").symlink_to("open")
    (tmp_path / "outside").symlink_to("top/private")
    (top / "a.py").symlink_to("private/sub/a.py")
    for path in (top / "link" / "a.py", tmp_path / "outside" / "sub" / "a.py", top / "mine" / "b.py", top / "a.py"):
        assert "excluded by .gitignore" in either.reason(path, []), path
    assert either.reason(top / "open" / "b.py", []) == ""


def test_a_tracked_file_is_not_ignored(home: Path, tmp_path: Path, files: IgnoreFiles) -> None:
    top = made(tmp_path / "top", "a.log", "b.log", "gen/c.py")
    (top / ".gitignore").write_text("*.log\ngen/\n")
    assert files.reason(top / "a.log", []) and files.reason(top / "gen" / "c.py", [])
    git(top, "add", "-f", "a.log", "gen/c.py")
    asked = ("a.log", "b.log", "gen/c.py", "gen/d.py", "*.log")
    assert [path for path in asked if files.reason(top / path, [])] == ["b.log", "gen/d.py", "*.log"]
    git(top, "rm", "-q", "--cached", "a.log")
    assert files.reason(top / "a.log", [])
    (top / ".codespecignore").write_text("gen/\n")
    assert "excluded by .codespecignore" in files.reason(top / "gen" / "c.py", [])


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("seed", range(TREES))
def test_generated_trees(home: Path, tmp_path: Path, files: IgnoreFiles, seed: int) -> None:
    """Random patterns in all places where git reads them, with tracked files, compared with git."""
    compare(random.Random(seed), home, tmp_path, files)


@pytest.mark.usefixtures("patient")
@pytest.mark.full
def test_many_generated_trees(home: Path, tmp_path: Path, files: IgnoreFiles) -> None:
    for seed in range(TREES, 2000):
        compare(random.Random(seed), home, tmp_path / str(seed), files)
        shutil.rmtree(tmp_path / str(seed))


def compare(chance: random.Random, home: Path, folder: Path, files: IgnoreFiles) -> None:
    def path() -> str:
        return "/".join(chance.choices(NAMES, k=chance.randint(1, 3)))

    def patterns(at: Path) -> None:
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text("\n".join(chance.choices(LINES, k=chance.randint(0, 5))))

    top = made(folder / "top")
    for _ in range(20):
        try:
            file = top / path()
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        except OSError:
            continue
    for at in (top, *(each for each in top.iterdir() if each.is_dir() and each.name != ".git")):
        patterns(at / ".gitignore")
    patterns(top / ".git" / "info" / "exclude")
    patterns(home / ".config" / "git" / "ignore")
    there = [str(each.relative_to(top)) for each in top.rglob("*") if each.is_file() and ".git/" not in f"{each}"]
    git(top, "add", "-f", "--", *(f":(literal){each}" for each in chance.sample(there, len(there) // 4)))
    asked = sorted({*there, *(path() for _ in range(30))} - {""})
    asked = [each for each in asked if "[" not in each]  # a pattern to git
    message = git(top, "check-ignore", "-z", "--stdin", text="\0".join(f"./{each}" for each in asked)).split("\0")
    ours = [each for each in asked if files.reason(top / each, [])]
    assert ours == [each for each in asked if f"./{each}" in message]


def test_a_hostile_repository_runs_nothing(home: Path, tmp_path: Path, files: IgnoreFiles) -> None:
    """Its configuration names programs for all occasions; none is started, and nothing is written."""
    top = made(tmp_path / "top", "a.py", "b.log")
    git(top, "add", "a.py")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    names = ["core.fsmonitor", "core.pager", "core.sshCommand", "core.editor", "diff.external", "filter.x.clean"]
    names += ["core.askPass", "credential.helper", "remote.origin.uploadpack", "trace2.normalTarget", "uploadpack.hook"]
    for name in names:
        git(top, "config", name, str(program))
    git(top, "config", "core.hooksPath", str(tmp_path))
    git(top, "config", "remote.origin.url", f"ext::{program}")
    git(top, "config", "alias.check-ignore", f"!{program}")
    (top / ".gitattributes").write_text("* filter=x\n")
    (top / ".gitignore").write_text("*.log\n")
    before = sorted((str(each), each.stat().st_mtime_ns) for each in (top / ".git").rglob("*"))
    assert files.reason(top / "b.log", []) and not files.reason(top / "a.py", [])
    assert not (tmp_path / "ran").exists()
    assert before == sorted((str(each), each.stat().st_mtime_ns) for each in (top / ".git").rglob("*"))


def test_a_git_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: IgnoreFiles) -> None:
    """The file counts as ignored, git is killed, and it is not started again at once."""
    top = made(tmp_path / "top", "a.py")
    slow = tmp_path / "git"
    slow.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/started\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(git_ignore, "find_git", lambda: str(slow))
    monkeypatch.setattr(git_ignore, "GIT_TIMEOUT_S", 0.3)
    for _ in range(3):
        assert "because git took more than" in files.reason(top / "a.py", [])
    (process,) = map(int, (tmp_path / "started").read_text().split())
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_repository_that_git_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: IgnoreFiles) -> None:
    """Pathspec reads its patterns instead."""
    top = made(tmp_path / "top", "a.py", "b.log")
    (top / ".gitignore").write_text("*.log\n")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setattr(git_ignore, "_KEPT", (*git_ignore._KEPT, "GIT_TEST_ASSUME_DIFFERENT_OWNER"))
    asked = GitIgnore()
    assert asked.source(top, top / "b.log") is None
    assert "excluded by .gitignore" in files.reason(top / "b.log", []) and not files.reason(top / "a.py", [])


def test_few_processes_that_end(home: Path, tmp_path: Path, files: IgnoreFiles) -> None:
    tops = [made(tmp_path / f"top{number}", "a.py") for number in range(git_ignore.MAX_PROCESSES + 3)]
    for top in tops:
        assert files.reason(top / "a.py", []) == ""
    running = [each._process for each in files._git._repositories.values()]
    assert len(running) == git_ignore.MAX_PROCESSES and all(each and each.poll() is None for each in running)
    files.close()
    assert all(each is not None and each.poll() is not None for each in running)


def test_one_process_answers_until_a_file_changes(home: Path, tmp_path: Path, files: IgnoreFiles) -> None:
    top = made(tmp_path / "top", "a.py", "sub/b.py")
    assert not files.reason(top / "a.py", [])
    (repository,) = files._git._repositories.values()
    first = repository._process
    assert not files.reason(top / "sub" / "b.py", []) and repository._process is first
    time.sleep(0.02)
    (top / "sub" / ".gitignore").write_text("b.py\n")
    assert files.reason(top / "sub" / "b.py", []) and repository._process is not first


def test_git_of_the_current_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "git").write_text("#!/bin/sh\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.pathsep}sub")
    assert git_ignore.find_git() == ""
