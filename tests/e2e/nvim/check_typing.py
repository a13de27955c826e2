"""The screen while the user types, and the file afterwards."""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.e2e.nvim.editor import Editor
from tests.e2e.nvim.fixtures import Daemon, Start

ADD = "def add(a, b):\n    return a + b\n\n\n"
# Positions at which a small model writes long completions; which is long enough depends on the model.
LONG = ["def load(path):", "def read_all(paths, encoding):", "def main(arguments):", "def find(name, folders):"]


def test_ghost_text_appears_and_tab_takes_it(editor: Editor, project: Path) -> None:
    editor.edit(project / "add.py", f"{ADD}def subtract(a, b):\n\n\nprint(add(1, 2))\n")
    editor.keys("5Goreturn ")
    ghost = editor.whole()
    editor.keys("<Tab>")
    prefix = f"{ADD}def subtract(a, b):\n    return "
    wanted = f"{prefix}{ghost}\n\n\nprint(add(1, 2))"
    editor.wait(lambda: editor.text() == wanted, "Tab takes the ghost text")
    assert editor.nvim.current.line[: editor.cursor()[1]] == f"    return {ghost}".rsplit("\n", 1)[-1]
    editor.keys("<Esc>:write<CR>")
    editor.wait(lambda: (project / "add.py").read_text() == wanted + "\n", "the file is prefix, completion and suffix")


def texts_of(editor: Editor) -> list[str]:
    """Return the ghost texts that the screen has shown, from the first one on."""
    return list(itertools.dropwhile(lambda text: not text, editor.seen()))


def test_the_text_grows_while_it_is_written(start: Start, slow_daemon: Daemon, project: Path) -> None:
    editor = start({"url": slow_daemon.url, "budgetMs": 20, "maxTokens": 256})
    editor.nvim.command("set paste")
    editor.watch()
    grew = []
    for number, heading in enumerate(LONG):
        editor.edit(project / f"long_{number}.py", f"{ADD}{heading}\n")
        editor.lua("_G.seen = {}")
        editor.keys("5GA")
        # Not until the text stands still for a while: how long a slowed daemon takes for a token differs by machine.
        editor.shown()
        editor.wait(
            lambda: len(texts_of(editor)) > 2 or not slow_daemon.count("codespec:num_requests_running"),
            "the text has grown twice or is whole",
        )
        shown = texts_of(editor)
        for earlier, later in itertools.pairwise(shown):
            assert later.startswith(earlier), "what is shown is only ever added to"
        editor.keys("<Esc>")
        grew.append(len(shown) - 1)
        if grew[-1] >= 2:
            break
    assert max(grew) >= 2, grew


def test_typing_along_costs_nothing(editor: Editor, project: Path) -> None:
    editor.edit(project / "along.py", f"{ADD}def subtract(a, b):\n")
    editor.keys("Goreturn ")
    whole = editor.whole()
    asked = editor.told()["counters"]["fromDaemon"]
    editor.watch()
    for typed in range(1, len(whole)):
        editor.keys(whole[typed - 1].replace("<", "<lt>"))
        assert editor.lua("return require('codespec').shown()") == whole[typed:]
    left = whole[-1:]
    editor.wait(lambda: editor.ghost() == left, "what is left is shown")
    continuous = {whole[typed:] for typed in range(len(whole))}
    assert set(editor.seen()) <= continuous
    assert editor.told()["counters"]["fromDaemon"] == asked


def test_tab_right_behind_a_typed_character_repeats_nothing(editor: Editor, project: Path) -> None:
    editor.edit(project / "quick.py", f"{ADD}def subtract(a, b):\n")
    editor.keys("Goreturn ")
    whole = editor.whole()
    editor.keys(f"{whole[0]}<Tab>")
    editor.wait(lambda: editor.nvim.current.line == f"    return {whole}", "taken once")


def test_what_is_not_the_text_any_more_is_not_shown(editor: Editor, project: Path) -> None:
    editor.edit(project / "other.py", f"{ADD}def subtract(a, b):\n")
    editor.keys("Goreturn ")
    whole = editor.whole()
    other = "q" if not whole.startswith("q") else "z"
    editor.watch()
    editor.keys(other)
    assert editor.lua("return require('codespec').shown()") == ""
    assert not editor.ghost()
    editor.keys("<BS>")
    editor.wait(lambda: editor.ghost() == whole, "it is the text again")


def test_typing_on_ends_the_work(start: Start, slow_daemon: Daemon, project: Path) -> None:
    daemon = slow_daemon
    editor = start({"url": daemon.url, "budgetMs": 20, "maxTokens": 1024})
    editor.nvim.command("set paste")
    ended = daemon.count("codespec:requests_cancelled_total")
    for number, heading in enumerate(LONG):
        editor.edit(project / f"cancel_{number}.py", f"{ADD}{heading}\n")
        editor.keys("5GA")
        editor.shown()
        editor.keys(" # ß")
        editor.wait(lambda: not daemon.count("codespec:num_requests_running"), "the daemon is idle again")
        editor.keys("<Esc>")
        if daemon.count("codespec:requests_cancelled_total") > ended:
            return
    raise AssertionError("no request was cancelled")


def test_an_emoji_and_crlf_before_the_cursor(editor: Editor, project: Path) -> None:
    before = 'MOOD = "🎉é"\r\n\r\n\r\ndef add(a, b):\r\n    return a + b\r\n\r\n\r\ndef subtract(a, b):\r\n'
    path = project / "dos.py"
    editor.edit(path, before.encode())
    assert editor.nvim.current.buffer.options["fileformat"] == "dos"
    editor.keys('Go🎉 = "🎉"; return ')
    ghost = editor.whole()
    editor.keys("<Tab>")
    wanted = f'{before}    🎉 = "🎉"; return {ghost}\n'.replace("\r\n", "\n").replace("\n", "\r\n")
    editor.wait(lambda: editor.nvim.current.line.endswith(ghost.rsplit("\n", 1)[-1]), "taken")
    editor.keys("<Esc>:write<CR>")
    editor.wait(lambda: path.read_bytes() == wanted.encode(), "the file is prefix, completion and suffix")


def test_text_right_of_the_cursor_stays(editor: Editor, project: Path) -> None:
    path = project / "middle.py"
    editor.edit(path, f"{ADD}print(add(a, ), 2)\n")
    editor.keys("5G0fa;;;")
    editor.nvim.command("call cursor(5, 14)")
    editor.keys("i")
    ghost = editor.whole()
    screen = editor.lua("return vim.fn.screenstring(5, 14 + #...) .. vim.fn.screenstring(5, 15 + #...)", ghost)
    assert screen == "),", "ghost text moves what stands behind it"
    editor.keys("<Tab><Esc>:write<CR>")
    editor.wait(lambda: path.read_text() == f"{ADD}print(add(a, {ghost}), 2)\n", "the text right of it stands there")
