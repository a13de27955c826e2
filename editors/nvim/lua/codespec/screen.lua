-- Shows ghost text, drawn by Neovim or by codespec, and which of several suggestions it is.

local native = require('codespec.native')
local own = require('codespec.own')

local M = {}

local HINT = vim.api.nvim_create_namespace('codespec.hint')

local drawer = own

--- Chooses whether Neovim or codespec draws. Returns whether it is Neovim.
---@param wanted 'auto'|'native'|'own'
---@return boolean
function M.use(wanted)
  drawer = wanted ~= 'own' and native.exists() and native or own
  return drawer == native
end

--- Returns whether Neovim draws, and so sends the requests too.
---@return boolean
function M.is_native()
  return drawer == native
end

--- Enables ghost text in a buffer.
---@param bufnr integer
function M.attach(bufnr)
  native.enable(drawer == native, bufnr)
end

--- Disables ghost text in a buffer.
---@param bufnr integer
function M.detach(bufnr)
  native.forget(bufnr)
end

--- Shows the rest of a suggestion at the cursor, and its number at the end of the line if there are several.
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
