---@meta
-- Types that several modules share; this file is never run.

---@class codespec.Keys Keys of insert mode, those of edits of normal mode too; false for none. While nothing is shown,
--- each key keeps its own meaning.
---@field accept string|false
---@field accept_word string|false
---@field accept_line string|false
---@field accept_block string|false
---@field next string|false requests suggestions if none is shown
---@field previous string|false
---@field dismiss string|false
---@field accept_edit string|false jumps to a next edit, then accepts it; nil: the key of `accept`
---@field dismiss_edit string|false

---@class codespec.Options
---@field enabled boolean whether completion is on
---@field cmd string[]|nil the language server's command; nil: `codespec lsp` as found on PATH
---@field filetypes table<string, boolean> false switches a file type off
---@field ghost_text 'auto'|'native'|'own' Neovim's vim.lsp.inline_completion draws (auto: if it exists), or codespec
---@field keys codespec.Keys
---@field settings table<string, any> the language server's settings, by their own names

---@class codespec.Item An inline completion as the server sends it: it replaces the line up to the cursor.
---@field insertText string
---@field range lsp.Range
---@field command? lsp.Command

---@class codespec.Offer A model to replace the starter pair, and the command that fetches it.
---@field model string
---@field bytes integer
---@field command string[]
---@field message string one sentence

---@class codespec.Status The server's status and that of the current document.
---@field kind 'Normal'|'Warning'|'Error'|'Inactive'|'Off'
---@field message string one sentence, or ''
---@field busy boolean
