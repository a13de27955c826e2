"""A real Neovim with the plugin, driven by key input; tests read the screen and the disk.

Every wait has a limit, and nothing sleeps for a guessed time.
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
WAIT = 30.0  # seconds, enough for a busy machine; latency is measured elsewhere
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
# Record the ghost text at every redraw that changes it.
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
    """Return a program's XDG folders below `home` as arguments of `env`."""
    return [f"XDG_{kind}_HOME={home / kind.lower()}" for kind in ("CONFIG", "DATA", "STATE", "CACHE")]


class Editor:
    """One Neovim. `home` holds its settings and its state; `options` are passed to the plugin's `setup`."""

    def __init__(self, program: str, home: Path, *, options: Mapping[str, Any] | None = None, first: str = "") -> None:
        arguments = [program, "--embed", "--headless", "-u", "NONE", "-i", "NONE", "-n"]
        self.nvim = pynvim.attach("child", argv=["env", "-u", "PYTHONPATH", *folders_of(home), *arguments])
        self._process = self.nvim.funcs.getpid()
        self.nvim.ui_attach(160, 50, rgb=True)
        # Keep file type plugins from searching for a Python provider.
        self.nvim.command("let g:loaded_python3_provider = 0")
        # Messages must not wait for a key, which would block all requests.
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
        """Quit without saving."""
        os.kill(self._process, signal.SIGTERM)  # works even while Neovim waits for a key
        self.nvim.close()

    def sweep(self) -> str:
        """Return to normal mode, close all files, and return the messages."""
        self.keys("<C-\\><C-n>")
        self.wait(lambda: self.nvim.api.get_mode()["mode"] == "n", "normal mode")
        message = str(self.nvim.command_output("messages"))
        self.nvim.command("messages clear")
        self.nvim.command("silent! %bwipeout!")
        return message

    def lua(self, code: str, *arguments: Any) -> Any:
        """Run Lua code and return its result."""
        if self.nvim.api.get_mode()["mode"] == "r":
            self.keys("<CR>")
        return self.nvim.exec_lua(code, *arguments)

    def edit(self, path: Path, text: str | bytes | None = None) -> None:
        """Open a file, writing `text` first if given, and wait until the server attaches."""
        if text is not None:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        self.nvim.command(f"edit {path}")
        attached = "return vim.startswith(vim.fn.maparg('<Tab>', 'i', false, true).desc or '', 'codespec')"
        self.wait(lambda: self.lua(attached), "the server attaches")

    def keys(self, keys: str) -> None:
        """Type keys one at a time; `<…>` names special keys."""
        self.nvim.input(keys)

    def ghost(self) -> str:
        """Return the ghost text on screen, or ""."""
        texts = self.lua(GHOSTS)
        assert len(texts) <= 1, f"drawn twice: {texts}"
        return texts[0] if texts else ""

    def shown(self, what: str = "ghost text appears", limit: float = WAIT) -> str:
        """Wait for ghost text and return it."""
        return self.wait(self.ghost, what, limit)

    def whole(self) -> str:
        """Wait until the ghost text stops growing and return it."""
        self.shown()
        last = ["", 0.0]

        def still() -> str:
            now = self.ghost()
            if now != last[0]:
                last[:] = [now, time.monotonic()]
            return now if now and time.monotonic() - last[1] > 0.7 else ""

        return self.wait(still, "the ghost text is whole")

    def lines(self) -> list[str]:
        """Return the buffer's lines."""
        return list(self.nvim.current.buffer[:])

    def text(self) -> str:
        """Return the buffer as one string."""
        return "\n".join(self.lines())

    def cursor(self) -> tuple[int, int]:
        """Return the row from 1 and the byte column from 0."""
        row, column = self.nvim.current.window.cursor
        return row, column

    def status(self) -> dict[str, Any]:
        """Return the plugin's status, as for a status line."""
        return dict(self.lua("return require('codespec').status()"))

    def told(self) -> dict[str, Any]:
        """Return the result of codespec/status."""
        client = "local client = vim.lsp.get_clients({ name = 'codespec' })[1]\n"
        call = "vim.fn.has('nvim-0.11') == 1 and client:request_sync(...) or client.request_sync(...)"
        call = call.replace("...", "'codespec/status', vim.empty_dict(), 5000, 0")
        return dict(self.lua(f"{client}return ({call}).result"))

    def wait(self, condition: Callable[[], Any], what: str, limit: float = WAIT) -> Any:
        """Wait until `condition` returns a true value and return it; fail after `limit` seconds with the editor's
        state.
        """
        end = time.monotonic() + limit
        while True:
            # While Neovim waits for a key, it answers only this request.
            blocking = self.nvim.api.get_mode()["blocking"]
            if not blocking and (value := condition()):
                return value
            if time.monotonic() > end:
                raise AssertionError(f"not within {limit:.0f} s: {what}. {self.account(blocking)}")
            time.sleep(0.01)

    def account(self, blocking: bool) -> str:
        """Describe the editor's state for a failure message."""
        if blocking:
            return f"Neovim waits for a key: {self.nvim.api.get_mode()}"
        messages = self.nvim.command_output("messages")
        return f"{self.status()}, mode {self.nvim.api.get_mode()}, {self.text()[-300:]!r}, messages {messages!r}"

    def version(self) -> tuple[int, int]:
        """Return the major and minor version."""
        found = self.lua("return vim.version()")
        return found["major"], found["minor"]

    def watch(self) -> None:
        """Start recording changes of the ghost text."""
        self.lua(WATCH)

    def seen(self) -> list[str]:
        """Return the recorded ghost texts."""
        return list(self.lua("return _G.seen"))
