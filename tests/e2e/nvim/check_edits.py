"""Next edits: shown, jumped to, accepted, dismissed and undone; by planted answers, and at last by the real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.nvim.editor import Editor
from tests.e2e.nvim.fixtures import Daemon, Start

FAKE = (Path(__file__).parent / "fake_server.lua").read_text()
CODE = "def total(items):\n    return sum(items)\n\n\ndef f(items):\n    print(total(items))\n    log(total(items))\n"
# Everything that is drawn: signs, hints, removed and added text.
DRAWN = """
local space, found = vim.api.nvim_get_namespaces()['codespec.edit'], {}
for _, mark in ipairs(vim.api.nvim_buf_get_extmarks(0, space, 0, -1, { details = true })) do
  local row, col, details = mark[2], mark[3], mark[4]
  local function add(kind, text)
    table.insert(found, { kind, row, text })
  end
  if details.sign_text then add('sign', '') end
  if details.virt_text then add(details.virt_text_pos == 'eol' and 'hint' or 'added', details.virt_text[1][1]) end
  if details.end_col and details.end_col > col then
    add('removed', vim.api.nvim_buf_get_text(0, row, col, row, details.end_col, {})[1])
  end
  for _, line in ipairs(details.virt_lines or {}) do add('line', line[1][1]) end
end
return found
"""


class EditTester:
    """An editor whose server is planted."""

    def __init__(self, editor: Editor, folder: Path) -> None:
        self.editor, self.folder = editor, folder

    def open(self, code: str = CODE) -> None:
        """Open a file."""
        self.editor.edit(self.folder / "edits.py", code)

    def plant(self, *hunks: tuple[int, int, str]) -> None:
        """Plant the next answer: rows and the text in their place."""
        planted = [
            {
                "range": {"start": {"line": first, "character": 0}, "end": {"line": last, "character": 0}},
                "newText": text,
            }
            for first, last, text in hunks
        ]
        self.editor.lua("table.insert(fake.edits, ...)", planted)

    def drawn(self) -> list[tuple[str, int, str]]:
        """Return what is drawn: kind, row and text."""
        return sorted((kind, row, text) for kind, row, text in self.editor.lua(DRAWN))

    def wait(self, drawn: list[tuple[str, int, str]]) -> None:
        """Wait until exactly this is drawn."""
        self.editor.wait(lambda: self.drawn() == drawn, f"{drawn} is drawn, not {self.drawn()}")

    def fake(self, name: str) -> Any:
        """Return what the fake server has recorded."""
        return self.editor.lua("return fake[...]", name)

    def rename(self) -> None:
        """Rename the function at its definition; its two calls are offered."""
        self.plant((5, 6, "    print(tally(items))\n"), (6, 7, "    log(tally(items))\n"))
        self.editor.keys("gg0wcwtally")


Begin = Callable[..., EditTester]


@pytest.fixture
def begin(start: Start, project: Path) -> Iterator[Begin]:
    """Return a function that opens a file in an editor with the fake server."""

    def opened(mode: str = "hint", first: str = "", **options: Any) -> EditTester:
        tester = EditTester(start({"nextEdit": mode}, first=FAKE + first, **options), project)
        tester.open()
        return tester

    yield opened


HINT = [("hint", 0, "  ⇥ line 6"), ("sign", 5, "")]
FIRST = [("added", 5, "tally"), ("removed", 5, "total"), ("sign", 5, "")]
SECOND = [("added", 6, "tally"), ("removed", 6, "total"), ("sign", 6, "")]


def test_a_hint_then_the_jump_then_each_hunk(begin: Begin) -> None:
    tester = begin()
    tester.rename()
    tester.wait(HINT)
    tester.editor.keys("<Tab>")
    tester.wait(FIRST)
    assert tester.editor.cursor() == (6, 10)
    tester.editor.keys("<Tab>")
    tester.wait([("hint", 5, "  ⇥ line 7"), ("sign", 6, "")])
    tester.editor.keys("<Tab>")
    tester.wait(SECOND)
    tester.editor.keys("<Tab>")
    tester.wait([])
    assert tester.editor.text() + "\n" == CODE.replace("total", "tally")
    tester.editor.wait(lambda: tester.fake("asked") == ["typing", "accepted", "accepted"], "what is asked")
    assert tester.fake("commands") == [["codespec.acceptEdit", 1, 0], ["codespec.acceptEdit", 1, 1]]
    assert tester.fake("notified").count("codespec/didShowEdit") == 1
    tester.editor.keys("<Esc>u")
    tester.editor.wait(lambda: tester.editor.lines()[6] == "    log(total(items))", "the last hunk is undone")
    assert tester.editor.lines()[:6] == CODE.replace("total", "tally").splitlines()[:6], "and nothing else"


def test_the_cursor_that_arrives_sees_the_whole_edit(begin: Begin) -> None:
    tester = begin()
    tester.rename()
    tester.wait(HINT)
    tester.editor.lua("require('codespec').dismiss()")  # of ghost text: the edit stays
    tester.editor.keys("<C-\\><C-n>5j")
    tester.wait(FIRST)


def test_an_edit_in_normal_mode_is_undone_alone(begin: Begin) -> None:
    tester = begin()
    tester.plant((6, 7, ""))
    tester.editor.keys("2Gx")
    tester.wait([("hint", 1, "  ⇥ line 7"), ("sign", 6, "")])
    tester.editor.keys("<Tab><Tab>")
    tester.editor.wait(lambda: len(tester.editor.lines()) == 6, "the line is removed")
    tester.editor.keys("u")
    tester.editor.wait(lambda: len(tester.editor.lines()) == 7, "the line is back")
    assert tester.editor.lines()[1] == "   return sum(items)", "what was typed before stays"


def test_eager_shows_the_whole_edit_at_once(begin: Begin) -> None:
    tester = begin("eager")
    tester.plant((2, 2, "\n\nimport math\nimport os\n"))
    tester.editor.keys("gg0wcwtally")
    lines = [("line", 1, ""), ("line", 1, ""), ("line", 1, "import math"), ("line", 1, "import os")]
    tester.wait([("hint", 0, "  ⇥ line 3"), *lines, ("sign", 2, "")])


def test_off_asks_nothing(begin: Begin) -> None:
    tester = begin("off")
    tester.rename()
    tester.editor.keys("<C-\\><C-n>j")
    tester.editor.wait(lambda: "textDocument/didChange" in tester.fake("notified"), "the change is sent")
    tester.editor.nvim.command("Codespec edit")  # the next message after what the change would have sent
    tester.editor.wait(lambda: tester.fake("asked") == ["invoked"], "only the explicit request")


def test_one_escape_dismisses_until_the_next_edit(begin: Begin) -> None:
    tester = begin()
    tester.rename()
    tester.wait(HINT)
    tester.plant((5, 6, "    print(tally(items))\n"))
    tester.editor.keys("<Esc>")
    tester.wait([])
    assert tester.editor.nvim.api.get_mode()["mode"] == "n", "it still leaves insert mode"
    assert tester.fake("commands") == [["codespec.dismissEdit", 1]]
    tester.editor.keys("jk")
    tester.editor.keys("x")
    tester.wait(HINT)
    assert tester.fake("asked") == ["typing", "typing"], "nothing is asked for the text in which it was dismissed"
    tester.editor.keys("<Esc>")
    tester.wait([])


def test_typing_hides_it(begin: Begin) -> None:
    tester = begin()
    tester.rename()
    tester.wait(HINT)
    tester.editor.keys("s")
    tester.wait([])
    assert tester.fake("commands") == []


def test_writing_the_file_keeps_it(begin: Begin) -> None:
    tester = begin()
    tester.rename()
    tester.wait(HINT)
    tester.editor.nvim.command("write")
    tester.editor.keys("<C-o>j")
    tester.wait([("hint", 1, "  ⇥ line 6"), ("sign", 5, "")])


def test_tab_indents(begin: Begin) -> None:
    tester = begin()
    tester.rename()
    tester.wait(HINT)
    tester.editor.keys("<C-o>o")
    tester.plant((6, 7, ""))
    tester.editor.wait(lambda: len(tester.fake("asked")) == 2, "asked for the new line")
    assert tester.drawn() == []
    tester.editor.keys("<Tab>x")
    tester.editor.wait(lambda: tester.editor.lines()[1] == " " * 8 + "x", "it is indented")


def test_ghost_text_and_menus_have_tab(begin: Begin) -> None:
    tester = begin(ghost_text="own")
    tester.rename()
    tester.wait(HINT)
    tester.editor.lua("fake.ghost = '_all'")
    tester.editor.lua("require('codespec').ask()")
    tester.editor.wait(lambda: tester.editor.ghost() == "_all", "ghost text")
    tester.wait([])
    tester.editor.lua("fake.ghost = nil")
    tester.editor.keys("<C-]>")
    tester.wait(HINT)
    tester.editor.lua("vim.fn.complete(10, { 'tally_one', 'tally_two' })")
    tester.wait([])
    tester.editor.keys("<C-e>")
    tester.editor.wait(lambda: not tester.editor.nvim.funcs.pumvisible(), "the menu closes")
    assert tester.editor.lines()[0] == "def tally(items):"


def test_a_snippet_has_tab(begin: Begin) -> None:
    tester = begin(first="vim.keymap.set({ 'i', 's' }, '<Tab>', function() vim.snippet.jump(1) end)\n")
    tester.editor.keys("Go<Esc>")
    tester.editor.wait(lambda: tester.fake("asked"), "asked")
    tester.editor.keys("S")
    tester.editor.lua("vim.snippet.expand('if (${1:x}) ${2:y}')")
    tester.plant((0, 1, "def tally(items):\n"))
    before = len(tester.fake("asked"))
    tester.editor.keys("p")
    tester.editor.wait(lambda: len(tester.fake("asked")) > before, "asked in the snippet")
    assert tester.drawn() == []
    tester.editor.keys("<Tab>q")
    tester.editor.wait(lambda: tester.editor.lines()[-1].startswith("if (p) q"), "the next place")


def test_tab_without_an_edit_keeps_its_meaning_in_normal_mode(begin: Begin) -> None:
    tester = begin(first="vim.keymap.set('n', '<Tab>', 'iX<Esc>')\n")
    tester.editor.keys("<Tab>")
    tester.editor.wait(lambda: tester.editor.lines()[0].startswith("X"), "the user's own mapping")


def test_it_is_shown_and_requested_by_command(begin: Begin) -> None:
    tester = begin()
    tester.plant((6, 7, "    log(tally(items))\n"))
    tester.editor.nvim.command("Codespec edit")
    tester.wait([("added", 6, "tally"), ("hint", 0, "  ⇥ line 7"), ("removed", 6, "total"), ("sign", 6, "")])
    tester.editor.keys("<Esc>")
    tester.wait([])
    tester.editor.nvim.command("Codespec edit")
    message = lambda: "nothing is planted." in tester.editor.nvim.command_output("messages")  # noqa: E731
    tester.editor.wait(message, "the reason is told")


def test_letters_beyond_ascii(begin: Begin) -> None:
    tester = begin()
    tester.open("größe = 1\nprint(größe, '🎉', größe)\n")
    tester.plant((1, 2, "print(maß, '🎉', maß)\n"))
    tester.editor.keys("gg0cwmaß")
    tester.wait([("hint", 0, "  ⇥ line 2"), ("sign", 1, "")])
    tester.editor.keys("<Tab>")
    two = [("added", 1, "maß"), ("added", 1, "maß"), ("removed", 1, "größe"), ("removed", 1, "größe"), ("sign", 1, "")]
    tester.wait(two)
    tester.editor.keys("<Tab>")
    tester.editor.wait(lambda: tester.editor.lines()[1] == "print(maß, '🎉', maß)", "accepted")


def test_the_real_server_offers_the_other_places_of_a_renamed_name(start: Start, daemon: Daemon, project: Path) -> None:
    editor = start({"url": daemon.url, "startDaemon": False})
    tester = EditTester(editor, project)
    tester.open()
    editor.keys("gg0wcwtally<Esc>")
    tester.wait(HINT)
    for row in (5, 6):
        editor.keys("<Tab><Tab>")
        editor.wait(lambda row=row: "tally" in editor.lines()[row], f"row {row} is renamed")
    tester.wait([])
    assert editor.text() + "\n" == CODE.replace("total", "tally")
    counters = dict(editor.told()["counters"])
    assert (counters["editsAccepted"], counters["editsDismissed"]) == (2, 0)
    editor.keys("u")
    editor.wait(lambda: editor.lines()[6] == "    log(total(items))", "one undo takes one place back")


def test_the_real_server_keeps_quiet_after_a_dismissal(start: Start, daemon: Daemon, project: Path) -> None:
    editor = start({"url": daemon.url, "startDaemon": False})
    tester = EditTester(editor, project)
    tester.open()
    editor.keys("gg0wcwtally<Esc>")
    tester.wait(HINT)
    editor.keys("<Esc>")
    tester.wait([])
    editor.wait(lambda: editor.told()["counters"]["editsDismissed"] == 1, "it is reported")
    editor.keys("jjkk")
    editor.nvim.command("Codespec edit")
    editor.wait(lambda: editor.nvim.command_output("messages").strip(), "an explicit request gets the reason")
    assert tester.drawn() == []
