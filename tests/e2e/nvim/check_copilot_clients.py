"""Edits that a model wrote, in sidekick.nvim and copilot-lsp set up as editors/sidekick.md says.

`COPILOT_CLIENTS` is a folder with a checkout of each, which this repository does not contain.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from codespec.api.types import CompletionRequest
from tests.e2e.nvim.editor import COMMAND, ROOT, Editor, folders_of
from tests.server.daemons import serving
from tests.server.fakes import FakeEngine

CLIENTS = os.environ.get("COPILOT_CLIENTS", "")
BLOCKS = re.findall(r"```lua\n(.*?)```", (ROOT / "editors/sidekick.md").read_text("utf-8"), re.DOTALL)
CODE = "def total(prices):\n    cost = 0\n    for price in prices:\n        cost = cost + price\n    return cost\n"
SHOWN = """
for name, space in pairs(vim.api.nvim_get_namespaces()) do
  if name:find('nes') or name:find('sidekick') then
    for _, mark in ipairs(vim.api.nvim_buf_get_extmarks(0, space, 0, -1, {})) do return mark[2] + 1 end
  end
end
return 0
"""
STATUS = "return vim.lsp.get_clients({ bufnr = 0 })[1]:request_sync('codespec/status', {}, 5000).result"

pytestmark = pytest.mark.skipif(
    not CLIENTS, reason="COPILOT_CLIENTS names no folder with sidekick.nvim and copilot-lsp"
)


def write(request: CompletionRequest) -> str:
    """Change the first line of the body and the last one."""
    text = request.prediction.replace("cost = 0\n", "cost = tax\n")
    return text.replace("return cost\n", "return round(cost)\n")


@pytest.fixture
def model(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a daemon whose model writes edits, in the editor's folders; return its address."""
    for folder in folders_of(home):
        monkeypatch.setenv(*folder.split("=", 1))
    with serving(FakeEngine(answer=write, ends="stop"), context=4096, edit_format="sweep-server") as served:
        yield f"http://127.0.0.1:{served.port}"


@pytest.mark.parametrize("name", ["sidekick.nvim", "copilot-lsp"])
def test_an_edit_of_a_model_is_shown_jumped_to_accepted_and_dismissed(
    program: str, home: Path, project: Path, model: str, name: str
) -> None:
    command = ", ".join(f'"{word}"' for word in (*COMMAND, "--copilot", "--no-start", "--daemon", model))
    setup = BLOCKS[name == "copilot-lsp"].replace('"codespec", "lsp", "--copilot"', command)
    editor = Editor(program, home)
    try:
        if editor.version() < (0, 11):
            pytest.skip("both need vim.lsp.config")
        editor.lua("vim.opt.runtimepath:prepend(...)", str(next(Path(CLIENTS).glob(f"*{name}"))))
        editor.lua(setup)
        (project / "prices.py").write_text(CODE, encoding="utf-8")
        editor.nvim.command(f"edit {project / 'prices.py'}")
        _use(editor, name)
    finally:
        editor.close()


def _use(editor: Editor, name: str) -> None:
    editor.wait(lambda: editor.lua("return #vim.lsp.get_clients({ bufnr = 0 })"), "the server attaches")
    editor.wait(lambda: editor.lua("return vim.lsp.get_clients({ bufnr = 0 })[1].initialized"), "it answers")
    editor.keys("gg$hi, tax<Esc>")
    editor.wait(lambda: editor.lua(SHOWN) == 2, "the first change is shown")
    editor.keys("<Tab>")
    editor.wait(lambda: editor.cursor()[0] == 2, "the cursor jumps to it")
    editor.keys("<Tab>")
    editor.wait(lambda: editor.lines()[1] == "    cost = tax", "it is accepted")
    editor.wait(lambda: editor.lua(SHOWN) == 5, "the second change is shown")
    status: dict[str, Any] = editor.lua(STATUS)
    assert status["counters"]["editsAccepted"] == (name == "sidekick.nvim"), "copilot-lsp reports none"
    editor.keys("<Esc>")
    editor.wait(lambda: editor.lua(SHOWN) == 0, "it is dismissed")
    assert editor.lines()[4] == "    return cost"
