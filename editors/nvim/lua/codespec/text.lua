-- Pure text: what of a suggestion is left to show, and the pieces of it that are accepted. Knows no buffers.

local M = {}

-- Bytes that belong to words; those of characters beyond ASCII do.
local WORD = '[%w_\128-\255]'
local OTHER = '[^%w_%s\128-\255]'

--- What follows `before` in a text; '' where the text goes on otherwise.
---@param text string
---@param before string
---@return string
function M.rest(text, before)
  return vim.startswith(text, before) and text:sub(#before + 1) or ''
end

--- The first piece of a suggestion: 'all' of it, its next 'word' with the space before that, or its next 'line'.
---@param rest string
---@param how 'all'|'word'|'line'
---@return string
function M.piece(rest, how)
  if how == 'word' then
    return rest:match('^%s*' .. WORD .. '+') or rest:match('^%s*' .. OTHER .. '+') or rest
  end
  return how == 'line' and rest:match('^\n*[^\n]*') or rest
end

--- The byte column of a protocol column; the end of the line where that lies beyond it.
---@param line string
---@param column integer
---@param encoding 'utf-8'|'utf-16'|'utf-32'
---@return integer
function M.byte_column(line, column, encoding)
  if encoding == 'utf-8' then
    return math.min(column, #line)
  elseif column >= M.length(line, encoding) then
    return #line
  elseif vim.fn.has('nvim-0.11') == 1 then
    return vim.str_byteindex(line, encoding, column)
  end
  return vim.str_byteindex(line, column, encoding == 'utf-16')
end

--- How long a text is in the protocol's units.
---@param text string
---@param encoding 'utf-8'|'utf-16'|'utf-32'
---@return integer
function M.length(text, encoding)
  if encoding == 'utf-8' then
    return #text
  elseif vim.fn.has('nvim-0.11') == 1 then
    return vim.str_utfindex(text, encoding)
  end
  local utf32, utf16 = vim.str_utfindex(text)
  return encoding == 'utf-16' and utf16 or utf32
end

return M
