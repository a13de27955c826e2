-- Draws ghost text with extmarks, for versions of Neovim without inline completion.

local M = {}

local SPACE = vim.api.nvim_create_namespace('codespec')
local GROUP = 'CodespecGhost'

--- Returns the second and later lines of a suggestion, the last one followed by the text to the right of the cursor.
local function below(lines, after)
  local drawn = {}
  for index = 2, #lines do
    table.insert(drawn, { { lines[index], GROUP } })
  end
  if #drawn > 0 and after ~= '' then
    table.insert(drawn[#drawn], { after, 'Normal' })
  end
  return drawn
end

--- Shows a text at a position. If it has several lines, the text to the right of the cursor moves after the last one,
--- as it will when the text is accepted.
---@param bufnr integer
---@param row integer
---@param col integer
---@param rest string
function M.show(bufnr, row, col, rest)
  local lines = vim.split(rest, '\n', { plain = true })
  local after = vim.api.nvim_buf_get_lines(bufnr, row, row + 1, false)[1]:sub(col + 1)
  local hides = #lines > 1 and after ~= ''
  local padding = hides and (' '):rep(vim.fn.strdisplaywidth(after) - vim.fn.strdisplaywidth(lines[1])) or ''
  vim.api.nvim_buf_set_extmark(bufnr, SPACE, row, col, {
    id = 1,
    virt_text = { { lines[1] .. padding, GROUP } },
    virt_text_pos = hides and 'overlay' or 'inline',
    virt_lines = below(lines, after),
    hl_mode = 'combine',
  })
end

---@param bufnr integer
function M.clear(bufnr)
  vim.api.nvim_buf_clear_namespace(bufnr, SPACE, 0, -1)
end

return M
