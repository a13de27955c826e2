-- Functions on text: the rest of a suggestion that is left to show, and the pieces that are accepted.

local M = {}

-- Bytes of words, including those of non-ASCII characters.
local WORD = '[%w_\128-\255]'
local OTHER = '[^%w_%s\128-\255]'

--- Returns the text after the prefix `before`, or '' if it has another prefix.
---@param text string
---@param before string
---@return string
function M.rest(text, before)
  return vim.startswith(text, before) and text:sub(#before + 1) or ''
end

--- Returns the word at the end of a line, or ''.
---@param line string
---@return string
function M.last_word(line)
  return line:match(WORD .. '*$')
end

--- Returns the next line with its body: the lines indented deeper than `indent`, and the line that closes them.
---@param rest string
---@param indent string of the line that it begins in
---@return string
local function block(rest, indent)
  local size, deeper = #rest:match('^\n*[^\n]*'), false
  local at = size
  while at < #rest do
    local line = rest:match('^\n[^\n]*', at + 1)
    local space, first = line:match('^\n(%s*)(.?)')
    if first ~= '' and #space <= #indent then
      local closes = deeper and #space == #indent and (first:match('[%]%)}]') or line:match('^\n%s*end%f[%W]'))
      return rest:sub(1, closes and at + #line or size)
    end
    at = at + #line
    if first ~= '' then
      deeper, size = true, at
    end
  end
  return rest:sub(1, size)
end

--- Returns the first piece of a suggestion: 'all' of it, its next 'word' with the space before it, its next 'line' or
--- its next 'block'.
---@param rest string
---@param how 'all'|'word'|'line'|'block'
---@param indent string? of the line that it begins in
---@return string
function M.piece(rest, how, indent)
  if how == 'word' then
    return rest:match('^%s*' .. WORD .. '+') or rest:match('^%s*' .. OTHER .. '+') or rest
  end
  if how == 'block' then
    return block(rest, indent or '')
  end
  return how == 'line' and rest:match('^\n*[^\n]*') or rest
end

--- Returns the byte column of a protocol column, at most the end of the line.
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

--- Returns the length of a text in the protocol's units.
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
