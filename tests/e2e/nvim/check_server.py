"""Language server and daemon: restarts, excluded files, several editors."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.e2e.nvim.editor import WAIT, Editor
from tests.e2e.nvim.fixtures import Daemon, Start, daemons_at

START = 120.0  # seconds for a daemon to start on a busy machine
ADD = "def add(a, b):\n    return a + b\n\n\n"


def type_return(editor: Editor, path: Path, limit: float = WAIT) -> str:
    """Type `return` from any mode and wait for ghost text."""
    editor.keys("<Esc>")
    editor.edit(path, f"{ADD}def subtract(a, b):\n")
    editor.keys("Goreturn ")
    return editor.shown(limit=limit)


def test_two_editors_have_one_daemon_and_it_comes_back(start: Start, project: Path, port: int) -> None:
    settings = {"url": f"http://127.0.0.1:{port}"}
    editors = [start(settings), start(settings)]
    for number, editor in enumerate(editors):
        editor.edit(project / f"two_{number}.py", f"{ADD}def subtract(a, b):\n")
        editor.keys("Goreturn ")
    for editor in editors:
        editor.shown("both get ghost text", START)
    assert editors[0].whole() == editors[1].whole()
    (killed,) = daemons_at(port)
    os.kill(killed, signal.SIGKILL)
    first = editors[0]
    first.wait(lambda: killed not in daemons_at(port), "the daemon is gone")
    type_return(first, project / "back.py", START)
    assert len(daemons_at(port)) == 1
    assert first.status()["kind"] == "Normal"
    assert first.told()["daemon"]["state"] == "ready"


def test_an_excluded_file_says_why(editor: Editor, project: Path) -> None:
    (project / ".gitignore").write_text("generated/\n")
    (project / "generated").mkdir()
    for name in [".env", "generated/a.py"]:
        editor.edit(project / name, "a = 1\n")
        message = Path(name).name
        editor.wait(lambda message=message: message in editor.status()["message"], "the status says so")
        assert editor.status()["kind"] == "Inactive"
        assert editor.lua("return require('codespec').statusline()") == "codespec off"
        asked = editor.told()["counters"]["fromDaemon"]
        questions = editor.told()["counters"]["questions"]
        editor.keys("ob = ")
        editor.wait(lambda questions=questions: editor.told()["counters"]["questions"] > questions, "it is asked")
        assert not editor.ghost() and editor.told()["counters"]["fromDaemon"] == asked
        editor.keys("<Esc>")
    editor.edit(project / "good.py", "a = 1\n")
    editor.wait(lambda: editor.status()["kind"] == "Normal", "another file is completed")


def test_the_language_server_is_started_again_thrice(start: Start, daemon: Daemon, project: Path) -> None:
    editor = start({"url": daemon.url})
    type_return(editor, project / "again.py")
    editor.keys("<Esc>")
    count = "return #vim.lsp.get_clients({ name = 'codespec', bufnr = 0 })"
    for _ in range(3):
        os.kill(editor.told()["process"], signal.SIGKILL)
        editor.wait(lambda: editor.lua(count) == 0, "it is gone")
        editor.wait(lambda: editor.lua(count) == 1, "it is there again")
    editor.keys("0C    return ")
    editor.shown("it works again")
    os.kill(editor.told()["process"], signal.SIGKILL)
    editor.wait(lambda: ":Codespec restart" in editor.nvim.command_output("messages"), "the user is told")
    assert editor.status()["kind"] == "Error"
    editor.wait(lambda: not editor.ghost(), "nothing is shown any more")
    assert not editor.lua("return vim.startswith(vim.fn.maparg('<Tab>', 'i', false, true).desc or '', 'codespec')")
    editor.nvim.command("Codespec restart")
    type_return(editor, project / "restarted.py")


def test_no_command_is_told_once_with_the_fix(start: Start, project: Path) -> None:
    editor = start(cmd=["codespec-that-is-nowhere", "lsp"])
    for name in ["one.py", "two.py"]:
        editor.nvim.command(f"edit {project / name}")
    editor.wait(lambda: editor.nvim.command_output("messages"), "it is told")
    message = editor.nvim.command_output("messages")
    assert message.count("`codespec-that-is-nowhere` can't be run: correct the option `cmd`.") == 1, message
    assert editor.status()["kind"] == "Error"
    editor.keys("o<Tab>x")
    editor.wait(lambda: editor.lines() == ["", "    x"], "typing goes on as ever")


def test_switched_off_and_on(editor: Editor, project: Path) -> None:
    type_return(editor, project / "switch.py")
    ghost = editor.whole()
    for words in ["", " python"]:
        editor.nvim.command(f"Codespec disable{words}")
        assert not editor.ghost()
        editor.keys("a<BS>")
        editor.wait(lambda: editor.status()["kind"] == "Inactive", "the status says so")
        assert not editor.ghost()
        editor.nvim.command(f"Codespec toggle{words}")
        editor.keys("a<BS>")
        editor.wait(lambda: editor.ghost() == ghost, "on again")
        assert editor.status()["kind"] == "Normal"
