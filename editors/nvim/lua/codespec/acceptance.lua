-- Reports to the server how much of a suggestion was accepted.

local server = require('codespec.server')
local text = require('codespec.text')

local M = {}

--- Reports that an item was accepted in full, by the item's own command.
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

--- Reports that an item was accepted up to a position of the buffer.
---@param suggestion codespec.Suggestion
---@param row integer
---@param col integer
function M.part(suggestion, row, col)
  local taken = text.length(suggestion:before(row, col) or '', 'utf-16')
  local params = { item = suggestion:item(), acceptedLength = taken }
  server.notify('textDocument/didPartiallyAcceptCompletion', params)
end

return M
