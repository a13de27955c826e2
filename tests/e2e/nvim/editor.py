"""A real Neovim with the plugin, driven as by a user's hands: keys go in, and what is on the screen and on the disk
comes out. Everything is waited for with a limit; nothing sleeps for a guessed time.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pynvim

ROOT = Path(__file__).resolve().parents[3]
PLUGIN = ROOT / "editors" / "nvim"
COMMAND = [str(ROOT / ".venv" / "bin" / "codespec"), "lsp"]
WAIT = 30.0  # seconds: a busy machine's, a user's patience is measured elsewhere
GHOSTS = """
local buffer, texts = vim.api.nvim_get_current_buf(), {}
for _, name in ipairs({ 'codespec', 'nvim.lsp.inline_completion' }) do
  local space = vim.api.nvim_get_namespaces()[name]
  for _, mark in ipairs(space and vim.api.nvim_buf_get_extmarks(buffer, space, 0, -1, { details = true }) or {}) do
    local lines = { mark[4].virt_text[1][1] }
    for _, line in ipairs(mark[4].virt_lines or {}) do
      table.insert(lines, line[1][1])
    end
    table.insert(texts, table.concat(lines, '\\n'))
  end
end
return texts
"""
# What every redraw of the screen shows as ghost text, as often as it changes.
WATCH = f"""
_G.seen = {{}}
local function ghosts() {GHOSTS} end
vim.api.nvim_set_decoration_provider(vim.api.nvim_create_namespace('test.watch'), {{
  on_start = function()
    local now = ghosts()[1] or ''
    if now ~= _G.seen[#_G.seen] then
      table.insert(_G.seen, now)
    end
  end,
}})
"""


def folders_of(home: Path) -> list[str]:
    """Where a program that is started keeps its things, as `env` takes it."""
    return [f"XDG_{kind}_HOME={home / kind.lower()}" for kind in ("CONFIG", "DATA", "STATE", "CACHE")]


class Editor:
    """One Neovim. `home` holds its settings and its state; `options` go to the plugin's `setup`."""

    def __init__(self, program: str, home: Path, *, options: Mapping[str, Any] | None = None, first: str = "") -> None:
        arguments = [program, "--embed", "--headless", "-u", "NONE", "-i", "NONE", "-n"]
        self.nvim = pynvim.attach("child", argv=["env", "-u", "PYTHONPATH", *folders_of(home), *arguments])
        self._process = self.nvim.funcs.getpid()
        self.nvim.ui_attach(160, 50, rgb=True)
        # A file type plugin would look for Pythons to run plugins with, and find none that we want.
        self.nvim.command("let g:loaded_python3_provider = 0")
        # Messages must not wait for a key: nothing else would be answered.
        self.nvim.command("set hidden noswapfile nomore cmdheight=15")
        self.nvim.command("if exists('&messagesopt') | set messagesopt=wait:0,history:500 | endif")
        self.nvim.command("filetype plugin indent on")
        self.nvim.exec_lua("vim.opt.runtimepath:prepend(...)", str(PLUGIN))
        if first:
            self.nvim.exec_lua(first)
        self.nvim.command("runtime! plugin/codespec.lua")
        if options is not None:
            self.nvim.exec_lua("require('codespec').setup(...)", {"cmd": COMMAND, **options})

    def close(self) -> None:
        """Ends it, without saving."""
        os.kill(self._process, signal.SIGTERM)  # which it heeds even while it waits for a key
        self.nvim.close()

    def sweep(self) -> str:
        """Leaves no mode and no file open; returns the messages there were."""
        self.keys("<C-\\><C-n>")
        self.wait(lambda: self.nvim.api.get_mode()["mode"] == "n", "normal mode")
        said = str(self.nvim.command_output("messages"))
        self.nvim.command("messages clear")
        self.nvim.command("silent! %bwipeout!")
        return said

    def lua(self, code: str, *arguments: Any) -> Any:
        """What a piece of Lua returns."""
        if self.nvim.api.get_mode()["mode"] == "r":
            self.keys("<CR>")
        return self.nvim.exec_lua(code, *arguments)

    def edit(self, path: Path, text: str | bytes | None = None) -> None:
        """Opens a file, written first if there is a text, and waits until the server knows it."""
        if text is not None:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        self.nvim.command(f"edit {path}")
        attached = "return vim.startswith(vim.fn.maparg('<Tab>', 'i', false, true).desc or '', 'codespec')"
        self.wait(lambda: self.lua(attached), "the server attaches")

    def keys(self, keys: str) -> None:
        """Types keys, each as if alone; `<…>` names special ones."""
        self.nvim.input(keys)

    def ghost(self) -> str:
        """The ghost text that is drawn; "" for none."""
        texts = self.lua(GHOSTS)
        assert len(texts) <= 1, f"drawn twice: {texts}"
        return texts[0] if texts else ""

    def shown(self, what: str = "ghost text appears", limit: float = WAIT) -> str:
        """The ghost text, once there is one."""
        return self.wait(self.ghost, what, limit)

    def whole(self) -> str:
        """The ghost text once it does not grow any more: the daemon is idle."""
        self.shown()
        last = ["", 0.0]

        def still() -> str:
            now = self.ghost()
            if now != last[0]:
                last[:] = [now, time.monotonic()]
            return now if now and time.monotonic() - last[1] > 0.7 else ""

        return self.wait(still, "the ghost text is whole")

    def lines(self) -> list[str]:
        """The buffer."""
        return list(self.nvim.current.buffer[:])

    def text(self) -> str:
        """The buffer as one text."""
        return "\n".join(self.lines())

    def cursor(self) -> tuple[int, int]:
        """Row from 1 and byte column from 0."""
        row, column = self.nvim.current.window.cursor
        return row, column

    def status(self) -> dict[str, Any]:
        """What a status line would know."""
        return dict(self.lua("return require('codespec').status()"))

    def told(self) -> dict[str, Any]:
        """The server's own account."""
        client = "local client = vim.lsp.get_clients({ name = 'codespec' })[1]\n"
        call = "vim.fn.has('nvim-0.11') == 1 and client:request_sync(...) or client.request_sync(...)"
        call = call.replace("...", "'codespec/status', vim.empty_dict(), 5000, 0")
        return dict(self.lua(f"{client}return ({call}).result"))

    def wait(self, condition: Callable[[], Any], what: str, limit: float = WAIT) -> Any:
        """What `condition` gives once that is true. Fails after `limit` seconds, with all that may explain it."""
        end = time.monotonic() + limit
        while True:
            # While it waits for a key, Neovim answers nothing but this.
            blocking = self.nvim.api.get_mode()["blocking"]
            if not blocking and (value := condition()):
                return value
            if time.monotonic() > end:
                raise AssertionError(f"not within {limit:.0f} s: {what}. {self.account(blocking)}")
            time.sleep(0.01)

    def account(self, blocking: bool) -> str:
        """How things are, for whoever reads a failure."""
        if blocking:
            return f"Neovim waits for a key: {self.nvim.api.get_mode()}"
        messages = self.nvim.command_output("messages")
        return f"{self.status()}, mode {self.nvim.api.get_mode()}, {self.text()[-300:]!r}, messages {messages!r}"

    def version(self) -> tuple[int, int]:
        """Major and minor."""
        found = self.lua("return vim.version()")
        return found["major"], found["minor"]

    def watch(self) -> None:
        """From now on every change of the ghost text on the screen is noted."""
        self.lua(WATCH)

    def seen(self) -> list[str]:
        """What was noted."""
        return list(self.lua("return _G.seen"))
