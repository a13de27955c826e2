-- The server's answer for one position of a buffer, and the part of it that is still to be shown there.

local text = require('codespec.text')

---@class codespec.Suggestion
---@field items codespec.Item[] the best first
---@field index integer of the shown item
---@field explicit boolean whether the user requested it
---@field bufnr integer
---@field row integer of the items' first character, from 0
---@field start integer its byte column
---@field tip integer[] row and column of the first request, before which it is not shown
---@field after string the text to the right of the cursor at the request
local Suggestion = {}
Suggestion.__index = Suggestion

--- Reads an answer to a request at `row`, `col` of a buffer. `before` is the suggestion shown until then; an answer
--- that continues it can be shown at the same positions.
---@param bufnr integer
---@param items codespec.Item[]
---@param place { row: integer, col: integer, encoding: string, explicit: boolean }
---@param before codespec.Suggestion?
---@return codespec.Suggestion?
function Suggestion.read(bufnr, items, place, before)
  local line = vim.api.nvim_buf_get_lines(bufnr, place.row, place.row + 1, false)[1]
  if #items == 0 or not line then
    return nil
  end
  local start = text.byte_column(line, items[1].range.start.character, place.encoding)
  local self = setmetatable({
    items = items,
    index = 1,
    explicit = place.explicit,
    bufnr = bufnr,
    row = items[1].range.start.line,
    start = start,
    tip = { place.row, place.col },
    after = line:sub(place.col + 1),
  }, Suggestion)
  if before and before:continues_in(self) then
    self.tip = before.tip
  end
  return self
end

---@return codespec.Item
function Suggestion:item()
  return self.items[self.index]
end

---@param other codespec.Suggestion
---@return boolean
function Suggestion:continues_in(other)
  local same_place = self.row == other.row and self.start == other.start
  return same_place and vim.startswith(other:item().insertText, self:item().insertText)
end

--- Returns the buffer's text from the item's start to a position, or nil for a position before it.
---@param row integer
---@param col integer
---@return string?
function Suggestion:before(row, col)
  local first = vim.api.nvim_buf_get_lines(self.bufnr, self.row, self.row + 1, false)[1]
  local gone = not first or #first < self.start or row < self.tip[1] or (row == self.tip[1] and col < self.tip[2])
  if gone or (row == self.row and col < self.start) then
    return nil
  end
  return table.concat(vim.api.nvim_buf_get_text(self.bufnr, self.row, self.start, row, col, {}), '\n')
end

--- Returns the text to show at a position: the rest of the suggestion, if the text around it is unchanged.
---@param row integer from 0
---@param col integer in bytes
---@return string
function Suggestion:rest(row, col)
  local before = self:before(row, col)
  local line = vim.api.nvim_buf_get_lines(self.bufnr, row, row + 1, false)[1]
  if not before or not line or line:sub(col + 1) ~= self.after then
    return ''
  end
  return text.rest(self:item().insertText, before)
end

return Suggestion
