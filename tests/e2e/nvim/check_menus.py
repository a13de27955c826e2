"""Completion menus of other plugins: ghost text hides while one is open, and suggestions can be menu entries.

The calls and events of blink.cmp and nvim-cmp are simulated from their documentation, because no package registry has
the plugins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.nvim.editor import Editor

CODE = "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n"
# The public interface of nvim-cmp: `cmp.event:on(name, callback)`.
CMP = """
local heard = {}
package.loaded['cmp'] = { event = {
  on = function(_, name, callback) heard[name] = callback end,
  emit = function(_, name) heard[name]({ window = {} }) end,
} }
"""
MENUS = {
    "blink.cmp": (
        "",
        "vim.api.nvim_exec_autocmds('User', { pattern = 'BlinkCmpMenuOpen' })",
        "vim.api.nvim_exec_autocmds('User', { pattern = 'BlinkCmpMenuClose' })",
    ),
    "nvim-cmp": (
        CMP,
        "package.loaded['cmp'].event:emit('menu_opened')",
        "package.loaded['cmp'].event:emit('menu_closed')",
    ),
}
# The plugins' calls of a source; entries go to _G.entries.
SOURCES = {
    "blink.cmp": """
local source, context = require('codespec.blink').new({}, {}), { bufnr = vim.api.nvim_get_current_buf() }
assert(source:enabled())
_G.take = function(item) source:execute(context, item, function() _G.done = true end, function() _G.apply(item) end) end
_G.stop = source:get_completions(context, function(answer) _G.entries = answer.items end)
""",
    "nvim-cmp": """
local source = require('codespec.cmp')
assert(source:is_available() and source:get_position_encoding_kind() == 'utf-8')
_G.take = function(item) _G.apply(item) source:execute(item, function() _G.done = true end) end
source:complete({ context = { option = { reason = 'auto' } }, completion_context = { triggerKind = 1 } },
  function(answer) _G.entries = answer.items end)
""",
}
APPLY = """
_G.entries, _G.done = nil, false
_G.apply = function(item) vim.lsp.util.apply_text_edits({ item.textEdit }, vim.api.nvim_get_current_buf(), 'utf-8') end
"""


def type_return(editor: Editor, path: Path) -> str:
    """Type `return` and wait for the whole ghost text."""
    editor.edit(path, CODE)
    editor.keys("Goreturn ")
    return editor.whole()


@pytest.mark.parametrize("plugin", MENUS)
def test_ghost_text_stands_back_while_a_menu_is_open(editor: Editor, project: Path, plugin: str) -> None:
    loaded, opens, closes = MENUS[plugin]
    editor.lua(loaded)
    whole = type_return(editor, project / "menu.py")
    editor.lua(opens)
    editor.wait(lambda: not editor.ghost(), "no ghost text beside the menu")
    assert editor.lua("return require('codespec').shown()") == ""
    assert editor.lua("return require('codespec').accept()") is False, "the keys are the menu's"
    editor.lua(closes)
    assert editor.shown("it is back") == whole
    editor.keys("<Tab>")
    editor.wait(lambda: editor.text().endswith(whole), "it is taken")
    editor.lua("package.loaded['cmp'] = nil")


@pytest.mark.parametrize("plugin", SOURCES)
def test_suggestions_are_entries_of_a_menu(editor: Editor, project: Path, plugin: str) -> None:
    whole = type_return(editor, project / "source.py")
    before = dict(editor.told()["counters"])
    editor.lua(APPLY + SOURCES[plugin])
    (entry,) = editor.wait(lambda: editor.lua("return _G.entries"), "entries come")
    assert whole.startswith(entry["label"]) and entry["filterText"] == entry["label"]
    assert entry["textEdit"]["newText"] == whole and whole in entry["documentation"]["value"]
    editor.lua("_G.take(_G.entries[1])")
    editor.wait(lambda: editor.lua("return _G.done"), "the source says that it is done")
    assert editor.text().endswith(f"return {whole}")
    editor.wait(lambda: editor.told()["counters"]["accepted"] == before["accepted"] + 1, "it is counted")


def test_an_entry_goes_on_from_the_word_that_is_typed(editor: Editor, project: Path) -> None:
    whole = type_return(editor, project / "word.py")
    typed = whole[0]
    editor.keys(typed)
    editor.wait(lambda: editor.lines()[-1].endswith(f"return {typed}"), "it is typed")
    editor.lua(APPLY + SOURCES["blink.cmp"])
    (entry,) = editor.wait(lambda: editor.lua("return _G.entries"), "entries come")
    assert entry["filterText"].startswith(typed) and entry["textEdit"]["newText"] == whole
    assert entry["textEdit"]["range"]["start"]["character"] == len("    return ")


def test_a_source_has_nothing_where_the_server_is_not(editor: Editor, project: Path) -> None:
    editor.nvim.command("enew")
    for source in SOURCES.values():
        found: Any = editor.lua(APPLY + source + "return _G.entries")
        assert found == []
