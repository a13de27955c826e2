-- Suggestions as entries of a completion menu (LSP completion items), for blink.cmp and nvim-cmp.

local M = {}

local acceptance = require('codespec.acceptance')
local ghost = require('codespec.ghost')
local text = require('codespec.text')

local MAX_LABEL = 60
local PLAIN_TEXT, AS_IS = 1, 1

--- Returns the label: the word that the text continues, and the text's first non-blank line.
---@param word string
---@param rest string
local function label_of(word, rest)
  local first = vim.trim(rest:match('^[^\n]*'))
  if first == '' then
    first = vim.trim(vim.trim(rest):match('^[^\n]*'))
    word = word == '' and '' or word .. ' '
  end
  return vim.fn.strcharpart(word .. first, 0, MAX_LABEL)
end

--- Returns an entry. It replaces the word before the cursor, by which menus filter. Columns are bytes.
---@param suggestion codespec.Suggestion
---@param row integer
---@param col integer
---@return lsp.CompletionItem?
local function entry(suggestion, row, col)
  local rest = suggestion:rest(row, col)
  if rest == '' then
    return nil
  end
  local before = vim.api.nvim_buf_get_lines(suggestion.bufnr, row, row + 1, false)[1]:sub(1, col)
  local word = text.last_word(before)
  local label = label_of(word, rest)
  local whole = ('```%s\n%s%s\n```'):format(vim.bo[suggestion.bufnr].filetype, before, rest)
  return {
    label = label,
    filterText = label,
    kind = vim.lsp.protocol.CompletionItemKind.Text,
    labelDetails = { description = 'codespec' },
    documentation = { kind = 'markdown', value = whole },
    insertTextFormat = PLAIN_TEXT,
    insertTextMode = AS_IS,
    textEdit = {
      newText = word .. rest,
      range = { start = { line = row, character = col - #word }, ['end'] = { line = row, character = col } },
    },
    data = { command = suggestion:item().command },
  }
end

--- Requests entries for the cursor of the current buffer. Returns a function that cancels the request; `done` is called
--- once, with an empty list if there is nothing to offer.
---@param explicit boolean whether the user requested it
---@param done fun(entries: lsp.CompletionItem[])
---@return fun()
function M.ask(explicit, done)
  return ghost.question(explicit, function(suggestion)
    local entries = {}
    for index = 1, suggestion and #suggestion.items or 0 do
      suggestion.index = index
      table.insert(entries, entry(suggestion, suggestion.tip[1], suggestion.tip[2]))
    end
    done(entries)
  end)
end

--- Reports that an entry was accepted.
---@param item lsp.CompletionItem
---@param bufnr integer
function M.taken(item, bufnr)
  acceptance.told(item.data and item.data.command, bufnr)
end

return M
