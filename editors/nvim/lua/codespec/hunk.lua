-- A hunk of a next edit as whole lines, and the words of a line that it changes.

local text = require('codespec.text')

local M = {}

---@class codespec.Hunk
---@field row integer of the first line that it replaces, from 0; of the line it is inserted before if `old` is empty
---@field old string[]
---@field new string[]

---@class codespec.WordChange
---@field from integer byte columns of the old line
---@field to integer
---@field new string

--- Reads a text edit. The lines at both ends that stay the same are left out. Returns nil if it changes nothing, or
--- begins after the end of the buffer.
---@param bufnr integer
---@param edit { range: lsp.Range, newText: string }
---@param encoding string
---@return codespec.Hunk?
function M.read(bufnr, edit, encoding)
  local first, last = edit.range.start, edit.range['end']
  local old = vim.api.nvim_buf_get_lines(bufnr, first.line, last.line + 1, false)
  if #old == last.line - first.line then
    table.insert(old, '') -- what follows the last line break
  end
  if #old ~= last.line - first.line + 1 then
    return nil
  end
  local head = old[1]:sub(1, text.byte_column(old[1], first.character, encoding))
  local tail = old[#old]:sub(text.byte_column(old[#old], last.character, encoding) + 1)
  local new = vim.split(head .. edit.newText:gsub('\r\n?', '\n') .. tail, '\n', { plain = true })
  while #old > 0 and old[#old] == new[#new] do
    table.remove(old)
    table.remove(new)
  end
  local row = first.line
  while #old > 0 and old[1] == new[1] do
    table.remove(old, 1)
    table.remove(new, 1)
    row = row + 1
  end
  return (#old > 0 or #new > 0) and { row = row, old = old, new = new } or nil
end

--- Returns whether a row is one of those that a hunk replaces, or a neighbour of the lines that it inserts.
---@param hunk codespec.Hunk
---@param row integer
---@return boolean
function M.holds(hunk, row)
  if #hunk.old == 0 then
    return row == hunk.row or row == hunk.row - 1
  end
  return row >= hunk.row and row < hunk.row + #hunk.old
end

--- Splits a line into words, spaces and single other characters, each followed by a line break.
local function words(line)
  local found = {}
  local at = 1
  while at <= #line do
    local word = line:match('^[%w_\128-\255]+', at) or line:match('^%s+', at) or line:sub(at, at)
    table.insert(found, word)
    at = at + #word
  end
  return found, table.concat(found, '\n') .. '\n'
end

--- Returns the words that differ between two lines, or nil if less than half of the longer line stays.
---@param old string
---@param new string
---@return codespec.WordChange[]?
function M.changes(old, new)
  local before, before_text = words(old)
  local after, after_text = words(new)
  local changes, kept, at, column = {}, #old, 1, 0
  for _, span in ipairs((vim.text.diff or vim.diff)(before_text, after_text, { result_type = 'indices' })) do
    local start, count, new_start, new_count = unpack(span)
    local first = count > 0 and start or start + 1
    column = column + #table.concat(before, '', at, first - 1)
    local removed = #table.concat(before, '', first, first + count - 1)
    local added = new_count > 0 and table.concat(after, '', new_start, new_start + new_count - 1) or ''
    table.insert(changes, { from = column, to = column + removed, new = added })
    at, column, kept = first + count, column + removed, kept - removed
  end
  return 2 * kept >= math.max(#old, #new) and changes or nil
end

return M
