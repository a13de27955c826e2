"""Key mappings: while ghost text is shown, and the original mappings when there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.nvim.editor import Editor
from tests.e2e.nvim.fixtures import Daemon, Start

ADD = "def add(a, b):\n    return a + b\n\n\n"
PLACES = ["def load(path):", "def read_all(paths, encoding):", "def main(arguments):", "for name in names:"]
# A user's mapping of <Tab>, and the result of pressing it twice on an empty line.
MAPPINGS = {
    "a text": ("vim.keymap.set('i', '<Tab>', 'X', {})", "XX"),
    "a function": ("vim.keymap.set('i', '<Tab>', function() vim.api.nvim_put({'F'}, 'c', false, true) end)", "FF"),
    "an expression": ("vim.keymap.set('i', '<Tab>', function() return '<lt>' end, {expr = true})", "<<"),
    "one that is mapped again": (
        "vim.cmd([[inoremap <Plug>(mine) Z\nimap <silent><expr> <Tab> col('.') == 1 ? '<Plug>(mine)' : '<Tab>']])",
        "Z\t",
    ),
    "Vim script": ('vim.cmd([[inoremap <expr> <Tab> col(\'.\') == 1 ? "\\<C-v>u00e9" : "\\<Tab>"]])', "é\t"),
    "one of the buffer": (
        "vim.api.nvim_create_autocmd('BufReadPost', {command = 'inoremap <buffer> <Tab> B', once = true})",
        "BB",
    ),
}


def type_something(editor: Editor, project: Path) -> str:
    """Produce ghost text of more than one word at the end of the buffer."""
    for number, place in enumerate(PLACES):
        editor.edit(project / f"some_{number}.py", f"{ADD}{place}\n")
        editor.keys("Go")
        ghost = editor.whole()
        if len(ghost.split()) > 2:
            return ghost
        editor.keys("<Esc>")
    raise AssertionError("nowhere were there three words")


def test_tab_is_a_tab_where_nothing_is_shown(editor: Editor, project: Path) -> None:
    editor.edit(project / "notes.env", "a\n")
    editor.keys("o<Tab>x")
    editor.wait(lambda: editor.lines() == ["a", "\tx"], "a tab")


@pytest.mark.parametrize("kind", MAPPINGS)
def test_tab_keeps_the_users_meaning(editor: Editor, project: Path, kind: str) -> None:
    mapping, wanted = MAPPINGS[kind]
    editor.lua("_G.tab = vim.fn.maparg('<Tab>', 'i', false, true)")
    editor.lua(mapping)
    editor.edit(project / "notes.env", "a\n")
    for typed in range(1, 3):
        editor.keys("o<Tab>" if typed == 1 else "<Tab>")
        editor.wait(lambda typed=typed: editor.lines() == ["a", wanted[:typed]], kind)
    editor.lua("vim.cmd('silent! iunmap <Tab>'); if next(_G.tab) then vim.fn.mapset('i', false, _G.tab) end")


def test_a_snippets_tab_jumps(editor: Editor, project: Path) -> None:
    if editor.version() < (0, 11):
        pytest.skip("Neovim 0.10 has no mapping of its own for snippets")
    editor.edit(project / "notes.env", "a\n")
    editor.keys("o")
    editor.lua("vim.snippet.expand('if (${1:x}) ${2:y}')")
    editor.keys("p<Tab>")
    editor.wait(lambda: editor.cursor() == (2, 7), "the next place")
    editor.keys("q")
    editor.wait(lambda: editor.lines() == ["a", "if (p) q"], "the next place")


def test_a_menu_has_the_keys_while_it_is_open(editor: Editor, project: Path) -> None:
    editor.edit(project / "menu.py", f"{ADD}subtotal = submarine = 1\n\n")
    editor.keys("6Goreturn ")
    editor.shown()
    editor.keys("sub<C-n>")
    editor.wait(lambda: editor.nvim.funcs.pumvisible(), "the menu opens")
    assert editor.lua("return require('codespec').shown()") == ""
    editor.wait(lambda: not editor.ghost(), "no ghost text beside the menu")
    editor.keys("<C-y>")
    editor.wait(lambda: not editor.nvim.funcs.pumvisible(), "the menu closes")
    assert editor.nvim.current.line == "return subtotal"


def counted(editor: Editor) -> dict[str, Any]:
    """Return the server's counters."""
    return dict(editor.told()["counters"])


def test_words_and_lines_are_taken_and_told(editor: Editor, project: Path) -> None:
    whole = type_something(editor, project)
    before = counted(editor)
    start, left = editor.text(), whole
    editor.watch()
    for key in ["<M-Right>", "<M-Right>", "<M-Down>"]:
        editor.keys(key)
        now = editor.wait(lambda left=left: _left(editor, start, whole, len(left)), key)
        assert whole.endswith(now)
        left = now
        if not left:
            break
    assert "" not in editor.seen()[: -1 if not left else None], "what is left stays on the screen"
    accepted = len(whole) - len(left)
    told = editor.wait(lambda: _told_since(editor, before, accepted), "it is counted")
    assert told["partlyAccepted"] + told["accepted"] == before["partlyAccepted"] + before["accepted"] + 1


def _left(editor: Editor, start: str, whole: str, most: int) -> str | None:
    """Return the rest of the text once fewer than `most` characters remain, else None."""
    taken = editor.text()[len(start) :]
    assert whole.startswith(taken), (taken, whole)
    return whole[len(taken) :] or " " if len(whole) - len(taken) < most else None


def _told_since(editor: Editor, before: dict[str, Any], characters: int) -> dict[str, Any] | None:
    now = counted(editor)
    return now if now["acceptedCharacters"] - before["acceptedCharacters"] == characters else None


def test_a_word_keeps_the_rest_in_place(editor: Editor, project: Path) -> None:
    whole = type_something(editor, project)
    editor.keys("<M-Right>")
    editor.wait(lambda: editor.ghost() != whole, "a word is taken")
    rest = editor.ghost()
    assert rest and whole.endswith(rest)
    editor.keys("<Tab>")
    editor.wait(lambda: editor.text().endswith(whole), "then the rest")


def test_what_is_taken_is_undone_by_itself(editor: Editor, project: Path) -> None:
    editor.edit(project / "undo.py", f"{ADD}def subtract(a, b):\n")
    editor.keys("Goreturn ")
    ghost = editor.whole()
    editor.keys("<Tab>")
    editor.wait(lambda: editor.text().endswith(ghost), "taken")
    editor.keys("<Esc>u")
    editor.wait(lambda: editor.lines()[-1] == "    return ", "undone")


def test_next_and_previous(editor: Editor, project: Path) -> None:
    first = type_something(editor, project)
    editor.keys("<M-]>")
    second = editor.wait(lambda: editor.ghost() not in ("", first) and editor.ghost(), "another one")
    editor.keys("<M-[>")
    editor.wait(lambda: editor.ghost() == first, "the first again")
    editor.keys("<M-[>")
    editor.wait(lambda: editor.ghost() not in ("", first), "the last")
    editor.keys("<M-]><M-]>")
    editor.wait(lambda: editor.ghost() == second, "the second again")
    start = editor.text()
    editor.keys("<Tab>")
    editor.wait(lambda: editor.text() == start + second, "what is shown is what is taken")


def test_dismissed_until_the_text_changes(editor: Editor, project: Path) -> None:
    editor.edit(project / "dismiss.py", f"{ADD}def subtract(a, b):\n")
    editor.keys("Goreturn ")
    editor.whole()
    asked = counted(editor)["questions"]
    editor.keys("<C-]>")
    editor.wait(lambda: not editor.ghost(), "nothing is shown")
    editor.watch()
    for key in ["<Left>", "<Right>"]:
        editor.keys(key)
        editor.wait(lambda asked=asked: counted(editor)["questions"] > asked, "the server is asked")
        asked = counted(editor)["questions"]
    assert not any(editor.seen())
    editor.keys("<BS> ")
    editor.shown("shown again")


def test_asked_for(editor: Editor, project: Path) -> None:
    editor.edit(project / "ask.py", f"{ADD}def subtract(a, b):\n")
    editor.keys("Goreturn ")
    ghost = editor.whole()
    editor.keys("<C-]>")
    editor.wait(lambda: not editor.ghost(), "dismissed")
    editor.lua("require('codespec').ask()")
    editor.wait(lambda: editor.ghost() == ghost, "the user asked")


def test_keys_of_ones_own(start: Start, daemon: Daemon, project: Path) -> None:
    keys = {"accept": "<C-j>", "dismiss": False}
    editor = start({"url": daemon.url}, keys=keys)
    editor.nvim.command("imap <C-l> <Plug>(codespec-accept-word)")
    editor.lua("_G.tab = vim.fn.maparg('<Tab>', 'i')")
    editor.nvim.command(f"edit {project / 'own.py'}")
    editor.wait(lambda: editor.lua("return vim.fn.maparg('<C-j>', 'i', false, true).buffer") == 1, "attached")
    assert editor.lua("return vim.fn.maparg('<Tab>', 'i') == _G.tab"), "Tab is left alone"
    editor.keys("ireturn a + b<CR>return ")
    ghost = editor.whole()
    editor.keys("<C-l>")
    editor.wait(lambda: editor.ghost() != ghost, "a word by a key of one's own")
    editor.keys("<C-j>")
    editor.wait(lambda: editor.text().endswith(ghost), "the rest")
