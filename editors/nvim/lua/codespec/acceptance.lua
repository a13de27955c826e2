-- Tells the server what was taken of a suggestion. Knows two messages.

local server = require('codespec.server')
local text = require('codespec.text')

local M = {}

--- An item was taken whole: it says itself how that is told.
---@param command lsp.Command?
---@param bufnr integer
function M.told(command, bufnr)
  if command then
    local params = { command = command.command, arguments = command.arguments }
    server.request('workspace/executeCommand', params, function() end, bufnr)
  end
end

---@param suggestion codespec.Suggestion
function M.whole(suggestion)
  M.told(suggestion:item().command, suggestion.bufnr)
end

--- It was taken up to a place of the buffer.
---@param suggestion codespec.Suggestion
---@param row integer
---@param col integer
function M.part(suggestion, row, col)
  local taken = text.length(suggestion:before(row, col) or '', 'utf-16')
  local params = { item = suggestion:item(), acceptedLength = taken }
  server.notify('textDocument/didPartiallyAcceptCompletion', params)
end

return M
