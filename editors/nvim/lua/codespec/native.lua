-- Ghost text by Neovim's own vim.lsp.inline_completion (0.12), which sends the requests and draws. This module corrects
-- the server's answers before Neovim sees them.
--
-- Neovim keeps an answer unchanged. While the user types along, accepting it would insert the typed part twice, and the
-- text to the right of the cursor is painted over. So Neovim gets only the rest of an answer at the cursor, again after
-- every change, and gets more text as soon as there is some, not 200 ms after the next key.

local server = require('codespec.server')
local text = require('codespec.text')

local M = {}

local METHOD = 'textDocument/inlineCompletion'

---@type table<integer, fun(items: lsp.InlineCompletionItem[])> By buffer: the callback that passes an answer to Neovim.
local give = {}
---@type table<integer, true?> Buffers in which codespec enabled Neovim's requests.
local enabled = {}
local own_question = false

--- Returns whether this Neovim has inline completion.
---@return boolean
function M.exists()
  return vim.lsp.inline_completion ~= nil
end

--- Enables Neovim's inline completion for a buffer, or disables it if it was enabled here. Neovim disables it itself
--- when the server ends.
---@param on boolean
---@param bufnr integer
function M.enable(on, bufnr)
  if on or enabled[bufnr] then
    vim.lsp.inline_completion.enable(on, { bufnr = bufnr })
  end
  enabled[bufnr] = on or nil
end

--- Handles the detachment of the server from a buffer.
---@param bufnr integer
function M.forget(bufnr)
  give[bufnr] = nil
end

--- Calls `ask` and marks its requests as this plugin's, not Neovim's.
---@param ask fun()
function M.aside(ask)
  own_question = true
  ask()
  own_question = false
end

--- Intercepts every request of Neovim and its answer.
---@param rpc vim.lsp.rpc.PublicClient
---@param asked fun(bufnr: integer): fun(err: lsp.ResponseError?, result: any)? the answer's receiver; nil: no request
function M.connect(rpc, asked)
  local request = rpc.request
  rpc.request = function(method, params, callback, replied)
    if method ~= METHOD or own_question then
      return request(method, params, callback, replied)
    end
    local bufnr = vim.uri_to_bufnr(params.textDocument.uri)
    local answered = asked(bufnr)
    if not answered then
      return true
    end
    return request(method, params, function(err, result, id)
      give[bufnr] = function(items)
        callback(nil, { items = items }, id)
      end
      answered(err, result)
    end, replied)
  end
end

--- Makes Neovim show a text at the cursor.
---@param bufnr integer
---@param row integer
---@param col integer
---@param rest string
---@param item codespec.Item
function M.show(bufnr, row, col, rest, item)
  local client = server.client()
  if not client or not give[bufnr] then
    return
  end
  local line = vim.api.nvim_buf_get_lines(bufnr, row, row + 1, false)[1]
  local here = { line = row, character = text.length(line:sub(1, col), client.offset_encoding) }
  give[bufnr]({ { insertText = rest, range = { start = here, ['end'] = here }, command = item.command } })
end

---@param bufnr integer
function M.clear(bufnr)
  if give[bufnr] then
    give[bufnr]({})
  end
end

return M
