-- Draws a next edit: a sign and `⇥ line n`, or the whole change.

local hunks = require('codespec.hunk')

local M = {}

local SPACE = vim.api.nvim_create_namespace('codespec.edit')
local SIGN = '⇥'

--- Defines the highlight groups that are no links; a new colour scheme removes them.
function M.define_highlights()
  local muted = vim.api.nvim_get_hl(0, { name = 'Comment', link = false }).fg
  vim.api.nvim_set_hl(0, 'CodespecRemoved', { strikethrough = true, fg = muted, default = true })
  vim.api.nvim_set_hl(0, 'CodespecAdded', { link = 'DiffAdd', default = true })
end

--- Returns the changed words of every line, or nil if the change is shown as whole lines.
---@param hunk codespec.Hunk
---@return codespec.WordChange[][]?
local function by_words(hunk)
  local found = {}
  for index, old in ipairs(hunk.old) do
    local changes = #hunk.old == #hunk.new and hunks.changes(old, hunk.new[index])
    if not changes then
      return nil
    end
    table.insert(found, changes)
  end
  return #found > 0 and found or nil
end

---@param bufnr integer
---@param row integer
---@param changes codespec.WordChange[]
local function draw_words(bufnr, row, changes)
  for _, change in ipairs(changes) do
    vim.api.nvim_buf_set_extmark(bufnr, SPACE, row, change.from, { end_col = change.to, hl_group = 'CodespecRemoved' })
    local added = { { change.new, 'CodespecAdded' } }
    vim.api.nvim_buf_set_extmark(bufnr, SPACE, row, change.to, { virt_text = added, virt_text_pos = 'inline' })
  end
end

---@param bufnr integer
---@param hunk codespec.Hunk
local function draw_lines(bufnr, hunk)
  local tab = (' '):rep(vim.bo[bufnr].tabstop)
  local added = vim.tbl_map(function(line)
    return { { (line:gsub('\t', tab)), 'CodespecAdded' } }
  end, hunk.new)
  for row = hunk.row, hunk.row + #hunk.old - 1 do
    local size = #hunk.old[row - hunk.row + 1]
    vim.api.nvim_buf_set_extmark(bufnr, SPACE, row, 0, { end_col = size, hl_group = 'CodespecRemoved' })
  end
  local above = hunk.row + #hunk.old == 0
  local row = math.max(0, hunk.row + #hunk.old - 1)
  vim.api.nvim_buf_set_extmark(bufnr, SPACE, row, 0, { virt_lines = added, virt_lines_above = above })
  if above and vim.fn.winsaveview().topline == 1 then
    vim.fn.winrestview({ topfill = #added }) -- lines above the first one are out of sight otherwise
  end
end

--- Shows a sign at a hunk, and its line's number at the cursor's row, unless the cursor is there.
---@param bufnr integer
---@param hunk codespec.Hunk
---@param row integer of the cursor
local function draw_hint(bufnr, hunk, row)
  local at = math.min(hunk.row, vim.api.nvim_buf_line_count(bufnr) - 1)
  vim.api.nvim_buf_set_extmark(bufnr, SPACE, at, 0, { sign_text = SIGN, sign_hl_group = 'CodespecHint' })
  if not hunks.holds(hunk, row) then
    local hint = { { ('  %s line %d'):format(SIGN, at + 1), 'CodespecHint' } }
    vim.api.nvim_buf_set_extmark(bufnr, SPACE, row, 0, { virt_text = hint, virt_text_pos = 'eol' })
  end
end

--- Shows a hunk in place of the one shown before.
---@param bufnr integer
---@param hunk codespec.Hunk
---@param row integer of the cursor
---@param whole boolean whether to show the change, not only where it is
function M.show(bufnr, hunk, row, whole)
  M.clear(bufnr)
  draw_hint(bufnr, hunk, row)
  local words = whole and by_words(hunk)
  if words then
    for index, changes in ipairs(words) do
      draw_words(bufnr, hunk.row + index - 1, changes)
    end
  elseif whole then
    draw_lines(bufnr, hunk)
  end
end

---@param bufnr integer
function M.clear(bufnr)
  if vim.api.nvim_buf_is_valid(bufnr) then
    vim.api.nvim_buf_clear_namespace(bufnr, SPACE, 0, -1)
  end
end

return M
