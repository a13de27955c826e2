-- Ghost text by Neovim's own vim.lsp.inline_completion (0.12): it asks and draws; what it draws is put right between
-- the server and it.
--
-- Neovim keeps an answer as it came. While the user types along, taking it would put the typed part there twice, and
-- what stands right of the cursor is painted over. So each answer reaches Neovim as what is left of it at the cursor,
-- again after every change; and it hears of more text the moment that is there, not 200 ms after the next key.

local server = require('codespec.server')
local text = require('codespec.text')

local M = {}

local METHOD = 'textDocument/inlineCompletion'

---@type table<integer, fun(items: lsp.InlineCompletionItem[])> By buffer: how Neovim gets an answer.
local give = {}
---@type table<integer, true?> Buffers for which Neovim asks because codespec wished it.
local enabled = {}
local own_question = false

--- Whether this Neovim has it.
---@return boolean
function M.exists()
  return vim.lsp.inline_completion ~= nil
end

--- Has Neovim ask for a buffer, or stop that where it was begun here. A server that ends it takes off the buffer by
--- itself.
---@param on boolean
---@param bufnr integer
function M.enable(on, bufnr)
  if on or enabled[bufnr] then
    vim.lsp.inline_completion.enable(on, { bufnr = bufnr })
  end
  enabled[bufnr] = on or nil
end

--- The server has left a buffer.
---@param bufnr integer
function M.forget(bufnr)
  give[bufnr] = nil
end

--- Calls `ask`, whose questions are ours and not Neovim's.
---@param ask fun()
function M.aside(ask)
  own_question = true
  ask()
  own_question = false
end

--- Sees every question of Neovim's and its answer.
---@param rpc vim.lsp.rpc.PublicClient
---@param asked fun(bufnr: integer): fun(err: lsp.ResponseError?, result: any)? what gets the answer; nil: ask nobody
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

--- Has Neovim show a text at the cursor.
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
