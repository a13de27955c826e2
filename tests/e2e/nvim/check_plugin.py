"""Installation, configuration, health check and help of the plugin."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.nvim.editor import COMMAND, PLUGIN, Editor
from tests.e2e.nvim.fixtures import Daemon, daemons_at

# Like lazy.nvim with { dir = …, opts = … }: extend the runtime path, source the plugin files, call setup.
LAZY = """
local folder, options = ...
vim.opt.runtimepath:prepend(folder)
vim.cmd.source(folder .. '/plugin/codespec.lua')
require('codespec').setup(options)
"""
FAULTS = {
    "an unknown option": (
        {"key": {}},
        "there is no option `key`: there are cmd, enabled, filetypes, ghost_text, keys",
    ),
    "an unknown key": (
        {"keys": {"acept": "x"}},
        "there is no option `keys.acept`: there are accept, accept_block, accept_edit, accept_line, ",
    ),
    "an unknown setting": (
        {"settings": {"budget": 1}},
        "there is no option `settings.budget`: there are",
    ),
    "a wrong type": ({"enabled": 1}, "the option `enabled` must be true or false: it keeps its default."),
    "a wrong choice": ({"ghost_text": "x"}, "the option `ghost_text` must be one of auto, native, own: it keeps"),
    "a wrong command": ({"cmd": "codespec"}, "the option `cmd` must be a list of texts such as"),
    "a wrong setting": ({"settings": {"budgetMs": "1"}}, "the option `settings.budgetMs` must be a number: it keeps"),
    "a wrong key": ({"keys": {"accept": True}}, 'the option `keys.accept` must be a key such as "<Tab>", or false'),
}


def messages(editor: Editor) -> str:
    """Return all messages."""
    return str(editor.nvim.command_output("messages"))


def test_nothing_starts_by_itself(program: str, home: Path, project: Path, daemon: Daemon) -> None:
    editor = Editor(program, home)
    editor.nvim.command(f"edit {project / 'plain.py'}")
    assert editor.nvim.funcs.exists(":Codespec") == 2
    assert editor.lua("return #vim.lsp.get_clients({ _uninitialized = true })") == 0
    assert editor.status()["kind"] == "Off"
    editor.nvim.command("Codespec status")
    assert "no language server runs" in messages(editor)
    editor.lua("vim.env.PATH = ... .. ':' .. vim.env.PATH", str(Path(COMMAND[0]).parent))
    editor.nvim.command("Codespec enable")
    editor.wait(lambda: editor.lua("return #vim.lsp.get_clients()") == 1, "found on PATH and started")
    editor.close()


# The documented vim.pack setup: it clones the checkout, and the plugin is a folder of it.
PACK = """
local source, options = ...
vim.pack.add({ { src = source, name = 'codespec' } }, {
  confirm = false,
  load = function(plugin)
    vim.opt.runtimepath:prepend(plugin.path .. '/editors/nvim')
    vim.cmd.runtime('plugin/codespec.lua')
  end,
})
require('codespec').setup(options)
"""


def checkout(folder: Path) -> str:
    """Return a repository with the plugin at its real path."""
    shutil.copytree(PLUGIN, folder / "editors" / "nvim")
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.invalid"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True)
    return f"file://{folder}"


@pytest.mark.parametrize("manner", ["lazy", "packadd", "vim.pack"])
def test_installed(program: str, home: Path, project: Path, daemon: Daemon, manner: str) -> None:
    editor = Editor(program, home)
    options = {"cmd": COMMAND, "settings": {"url": daemon.url}}
    editor.lua("vim.opt.runtimepath:remove(...)", str(PLUGIN))
    editor.lua("vim.g.loaded_codespec = nil; vim.api.nvim_del_user_command('Codespec')")
    if manner == "vim.pack":
        if editor.version() < (0, 12):
            editor.close()
            pytest.skip("vim.pack is of Neovim 0.12")
        editor.lua(PACK, checkout(project / "checkout"), options)
        assert "/pack/core/opt/codespec/editors/nvim" in editor.nvim.options["runtimepath"]
    elif manner == "lazy":
        editor.lua(LAZY, str(PLUGIN), options)
    else:
        packages = project / "site" / "pack" / "mine" / "opt" / "codespec"
        shutil.copytree(PLUGIN, packages)
        editor.lua("vim.opt.packpath:prepend(...)", str(project / "site"))
        editor.nvim.command("packadd codespec")
        editor.lua("require('codespec').setup(...)", options)
    editor.edit(project / "installed.py", "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n")
    editor.keys("Goreturn ")
    editor.shown()
    editor.close()


@pytest.mark.parametrize("kind", FAULTS)
def test_options_that_cant_be_used_are_told_of(program: str, home: Path, kind: str) -> None:
    options, wanted = FAULTS[kind]
    editor = Editor(program, home)
    _, faults = editor.lua("local a, b = require('codespec.config').read(...); return { a.enabled, b }", options)
    editor.close()
    assert len(faults) == 1 and faults[0].startswith(wanted), faults


def test_health(editor: Editor, project: Path, daemon: Daemon) -> None:
    editor.edit(project / "health.py", "a = 1\n")
    editor.nvim.command("checkhealth codespec")
    report = editor.text()
    editor.nvim.command("bwipeout!")
    assert "ERROR" not in report and "WARNING" not in report, report
    assert f"the daemon at {daemon.url} is ready" in report
    assert "is codespec" in report and "nothing covers the keys" in report


def test_health_finds_a_covered_key(editor: Editor, project: Path) -> None:
    editor.edit(project / "covered.py", "a = 1\n")
    editor.nvim.command("inoremap <buffer> <Tab> mine")
    editor.nvim.command("checkhealth codespec")
    report = editor.text()
    editor.nvim.command("bwipeout!")
    assert "<Tab> is mapped in this buffer after codespec mapped it (mine)" in report, report


def test_help(editor: Editor, project: Path) -> None:
    copy = project / "copy"
    shutil.copytree(PLUGIN / "doc", copy / "doc")
    editor.nvim.command(f"helptags {copy / 'doc'}")
    tags = {line.split("\t")[0] for line in (copy / "doc" / "tags").read_text().splitlines()}
    editor.lua("vim.opt.runtimepath:append(...)", str(copy))
    editor.nvim.command("help codespec")
    assert editor.nvim.current.buffer.name.endswith("doc/codespec.txt")
    functions = editor.lua("return vim.tbl_keys(require('codespec'))")
    missing = {f"codespec.{name}()" for name in functions} - tags
    assert not missing, f"functions without help: {missing}"
    names = editor.lua("return require('codespec.commands').complete('', 'Codespec ')")
    assert not {f":Codespec-{name}" for name in names} - tags
    editor.lua("vim.opt.runtimepath:remove(...)", str(copy))


def test_commands_are_completed(editor: Editor) -> None:
    complete = editor.nvim.funcs.getcompletion
    wanted = ["disable", "edit", "enable", "explain", "log", "page", "pull", "restart", "status", "toggle"]
    assert complete("Codespec ", "cmdline") == wanted
    assert complete("Codespec e", "cmdline") == ["edit", "enable", "explain"]
    assert "python" in complete("Codespec toggle py", "cmdline")
    assert complete("Codespec log ", "cmdline") == ["daemon", "server"]
    editor.nvim.command("Codespec nonsense")
    wanted = "there is no `:Codespec nonsense`: there are disable, "
    editor.wait(lambda: wanted in messages(editor), "a word that is no command is told of")
    editor.nvim.command("messages clear")


def test_what_commands_say(editor: Editor, project: Path, daemon: Daemon) -> None:
    editor.edit(project / "said.py", "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n")
    editor.keys("Goreturn ")
    editor.whole()
    editor.keys("<Tab><Esc>")
    editor.nvim.command("Codespec status")
    editor.wait(lambda: "suggestions taken" in messages(editor), "the status is told")
    assert f"daemon: ready at {daemon.url}" in messages(editor)
    assert "models: target codespec-starter" in messages(editor)
    windows = len(editor.nvim.windows)
    editor.nvim.command("Codespec explain")
    editor.wait(lambda: len(editor.nvim.windows) == windows + 1, "a window explains")
    assert "tokens" in "\n".join(editor.nvim.windows[-1].buffer[:])
    editor.keys("j")
    editor.lua("vim.ui.open = function(address) _G.opened = address end")
    editor.nvim.command("Codespec page")
    assert editor.lua("return _G.opened") == f"{daemon.url}/"
    editor.lua("vim.lsp.log.error('a line, so that there is a log')")
    editor.nvim.command("Codespec log")
    assert editor.nvim.current.buffer.name.endswith("lsp.log")
    editor.nvim.command("tabonly")


def test_status_line(editor: Editor, project: Path) -> None:
    line = "return require('codespec').statusline()"
    editor.edit(project / "line.py", "a = 1\n")
    editor.wait(lambda: editor.lua(line) == "codespec", "all is well")
    take = "require('codespec.status').take({ kind = ..., message = 'x', busy = false }); "
    marks = {kind: editor.lua(take + line, kind) for kind in ["Warning", "Error", "Inactive", "Normal"]}
    assert marks == {"Warning": "codespec?", "Error": "codespec!", "Inactive": "codespec off", "Normal": "codespec"}


def test_a_better_model_is_told_of_once_and_pulled_when_the_user_says_so(
    program: str, project: Path, port: int
) -> None:
    offering = {"url": f"http://127.0.0.1:{port}", "daemonArguments": ["--model", ""]}  # independent of the environment
    name = "qwen2.5-coder-0.5b-instruct"
    told = f"`codespec models pull {name}` (491 MB) brings a real one. `:CodespecPull` does it here."

    def begin() -> Editor:
        editor = Editor(program, project / "home", options={"settings": offering})
        editor.edit(project / "offer.py", "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n")
        editor.keys("Goreturn ")
        editor.shown(limit=180)  # the folders are new, so the daemon first measures
        editor.keys("<C-\\><C-n>")
        return editor

    editor = begin()
    editor.wait(lambda: told in messages(editor), "it is told")
    (before,) = daemons_at(port)
    editor.wait(lambda: "small starter pair answers" in editor.status()["message"], "the status says it too")
    editor.nvim.command("checkhealth codespec")
    assert f"`:CodespecPull` fetches {name} to replace it" in editor.text()
    command = editor.lua("return require('codespec.offer').now().command")
    assert command[1:] == ["-P", "-m", "codespec", "models", "pull", name]
    editor.lua("require('codespec.offer').now().command = { 'sh', '-c', 'exit 1' }")
    editor.nvim.command("CodespecPull")
    editor.wait(
        lambda: f"{name} was not pulled: the terminal says why." in messages(editor),
        "it failed",
        limit=180,
    )
    assert daemons_at(port) == [before], "which changes nothing"
    editor.lua("require('codespec.offer').now().command = { 'sh', '-c', 'echo pulled' }")
    editor.nvim.command("Codespec pull")
    editor.wait(
        lambda: f"{name} is here, and the daemon loads it." in messages(editor),
        "it was pulled",
        limit=180,
    )
    assert daemons_at(port) and before not in daemons_at(port), "another daemon has begun"
    editor.close()
    again = begin()
    again.wait(lambda: again.lua("return require('codespec.offer').now() ~= nil"), "it is offered again")
    assert "CodespecPull" not in messages(again), "but not told again"
    again.close()
