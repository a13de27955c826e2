-- Who draws ghost text, Neovim or codespec, and which of several suggestions it is. Knows no answers.

local native = require('codespec.native')
local own = require('codespec.own')

local M = {}

local HINT = vim.api.nvim_create_namespace('codespec.hint')

local drawer = own

--- Chooses who draws. Returns whether it is Neovim.
---@param wanted 'auto'|'native'|'own'
---@return boolean
function M.use(wanted)
  drawer = wanted ~= 'own' and native.exists() and native or own
  return drawer == native
end

--- Whether Neovim draws, and then also asks.
---@return boolean
function M.is_native()
  return drawer == native
end

--- Begins in a buffer.
---@param bufnr integer
function M.attach(bufnr)
  native.enable(drawer == native, bufnr)
end

--- Ends in a buffer.
---@param bufnr integer
function M.detach(bufnr)
  native.forget(bufnr)
end

--- Shows what is left of a suggestion at the cursor; of several, also which it is, at the end of the line.
---@param suggestion codespec.Suggestion
---@param row integer
---@param col integer
---@param rest string
function M.show(suggestion, row, col, rest)
  local bufnr = suggestion.bufnr
  drawer.show(bufnr, row, col, rest, suggestion:item())
  vim.api.nvim_buf_clear_namespace(bufnr, HINT, 0, -1)
  if #suggestion.items > 1 then
    local which = ('  %d/%d'):format(suggestion.index, #suggestion.items)
    vim.api.nvim_buf_set_extmark(bufnr, HINT, row, 0, { virt_text = { { which, 'CodespecHint' } } })
  end
end

---@param bufnr integer
function M.clear(bufnr)
  drawer.clear(bufnr)
  vim.api.nvim_buf_clear_namespace(bufnr, HINT, 0, -1)
end

return M
