"""Extraction and execution of a page's commands: what counts as a command, and what counts as a failure."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import readme_commands
from tools.readme_commands import Command, Outcome, PageError, commands, judge, run, run_all, user_environment

PAGE = """# Title
```sh
not marked
```
<!-- e2e -->
```sh
$ first --flag
# a remark

second \\
    --long one \\
    --and two
```
text
  <!--e2e exit=2-->
  ```sh
  bad --input
  ```
<!-- e2e -->
````sh
echo '```'
````
"""
SENTENCE = "echo 'one sentence' >&2; exit 2"


def test_marked_blocks_only_in_order() -> None:
    assert commands(PAGE) == [
        Command("first --flag"),
        Command("second --long one --and two"),
        Command("bad --input", 2),
        Command("echo '```'"),
    ]


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("<!-- e2e -->\ntext\n", "right before"),
        ("<!-- e2e -->", "right before"),
        ("<!-- e2e -->\n\n```sh\nls\n```\n", "right before"),
        ("<!-- e2e -->\n```python\nls\n```\n", "right before"),
        ("<!-- e2e -->\n```sh\nls\n", "never closed"),
        ("<!-- e2e -->\n```sh\nls \\\n```\n", "is continued"),
    ],
)
def test_a_mark_that_marks_nothing_is_an_error(page: str, sentence: str) -> None:
    with pytest.raises(PageError, match=sentence):
        commands(page)


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        (Command("true"), ""),
        (Command("false"), "exit code 1, not 0"),
        (Command(SENTENCE, 2), ""),
        (Command(SENTENCE, 1), "exit code 2, not 1"),
        (Command("true", 2), "exit code 0, not 2"),
        (Command("exit 2", 2), "0 lines on stderr"),
        (Command(f"echo usage >&2; {SENTENCE}", 2), "2 lines on stderr"),
        (Command("echo 'Traceback (most recent call last):' >&2; exit 2", 2), "a traceback"),
        (Command("echo 'Traceback (most recent call last):'"), "a traceback"),
        (Command("printf '\\377'"), ""),
        (Command("test -f here.txt"), ""),
        (Command("read line"), "exit code 1"),
    ],
)
def test_faults(command: Command, fault: str, tmp_path: Path) -> None:
    (tmp_path / "here.txt").touch()
    found = run(command, tmp_path).fault
    assert found.startswith(fault) and bool(found) == bool(fault)


SUM = "1 tokens in 1 rounds, 0 of 7 drafted accepted, 5 ms"


@pytest.mark.parametrize(
    ("flags", "printed", "completed"),
    [
        ("", "text\n", True),
        ("", "\n", False),
        ("", "", False),
        ("--json", '{"text": "(name)", "finish_reason": "stop"}', True),
        ("--json", '{"text": "", "finish_reason": "stop"}', False),
        ("--json", '{"text": " \\n", "finish_reason": "length"}', False),
        ("--json", "", False),
        ("--show-draft", f" self[.items]-.get(-\n  1  1/7  identifier: why\n{SUM}\n", True),
        ("--show-draft", f"[.items]\n  1  1/1  identifier: why\n{SUM}\n", True),
        ("--show-draft", f"-.get(-\n  1  0/7  identifier: why\n{SUM}\n", False),
        ("--show-draft", f"\n{SUM}\n", False),
        ("--show-draft", "\n0 tokens in 0 rounds, 0 of 0 drafted accepted, 5 ms\n", False),
    ],
)
def test_an_example_must_complete_something(flags: str, printed: str, completed: bool) -> None:
    command = Command(f".venv/bin/codespec complete a.py:1:1 {flags}  # what's said")
    assert judge(command, Outcome(0, printed, "")) == ("" if completed else "nothing was completed")


def test_other_commands_and_refused_examples_may_print_nothing() -> None:
    assert judge(Command("codespec doctor"), Outcome(0, "", "")) == ""
    assert judge(Command("codespec complete no.py:1:1", 2), Outcome(2, "", "It can't be read.\n")) == ""


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    outcome = run(Command("sleep 10000 | cat"), tmp_path, seconds=0.3)  # would wait for all that hold the pipe
    assert outcome.fault.startswith("not done after")


def test_the_environment_is_a_users(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "VIRTUAL_ENV", "PYTHONPATH"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("KEPT", "x")
    environment = user_environment()
    assert environment["KEPT"] == "x" and not {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "VIRTUAL_ENV"} & set(environment)


def test_closing_line_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_all([Command("true"), Command("echo why; false"), Command("true")], tmp_path) == 1
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == "2 passed, 1 failed"
    assert "    why" in printed


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "README.md").write_text("<!-- e2e -->\n```sh\ntest -f README.md\ntest ! -f litter\n```\n")
    git(folder, "add", "README.md")
    git(folder, "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qm", "page")
    (folder / "litter").touch()
    return folder


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, timeout=60)


def test_runs_in_a_clone_of_head(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert readme_commands.main(["README.md", "--repository", str(repository)]) == 0
    assert capsys.readouterr().out.endswith("2 passed, 0 failed\n")


def test_a_failing_command_fails_the_run(repository: Path) -> None:
    page = repository / "README.md"
    page.write_text("<!-- e2e -->\n```sh\nfalse\n```\n")
    git(repository, "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qam", "fails")
    assert readme_commands.main(["README.md", "--repository", str(repository)]) == 1


def test_a_page_without_commands_is_a_failure(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "README.md").write_text("nothing")
    git(repository, "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qam", "empty")
    assert readme_commands.main(["README.md", "--repository", str(repository)]) == 1
    assert "no page has a block" in capsys.readouterr().err


def test_a_page_that_is_not_committed_is_named(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert readme_commands.main(["litter", "--repository", str(repository)]) == 1
    assert "litter is not in HEAD" in capsys.readouterr().err
