-- The keys in insert mode. While ghost text is shown, a key runs its action; otherwise it keeps its previous meaning:
-- another mapping of the buffer, a global one, or the key itself.

local M = {}

local BEFORE = '<Plug>(codespec-before)'
local DESC = 'codespec: '

-- By action: whether it also works if nothing is shown.
local ACTIONS = {
  accept = false,
  accept_word = false,
  accept_line = false,
  accept_block = false,
  next = true,
  previous = true,
  dismiss = false,
}

---@type table<integer, table<string, table>> By buffer and key: the buffer's mapping that ours replaces.
local covered = {}

---@param action string
---@return string
local function plug(action)
  return ('<Plug>(codespec-%s)'):format(action:gsub('_', '-'))
end

---@param mappings table[] as `nvim_get_keymap` returns them
---@param key string
---@return table?
local function find(mappings, key)
  local code = vim.keycode(key)
  local name = vim.fn.keytrans(code)
  for _, mapping in ipairs(mappings) do
    if mapping.lhsraw == code or mapping.lhsrawalt == code or mapping.lhs == name then
      return mapping
    end
  end
end

---@param bufnr integer
---@param key string
---@return table?
local function of_buffer(bufnr, key)
  return find(vim.api.nvim_buf_get_keymap(bufnr, 'i'), key)
end

---@param mapping table?
---@return boolean
local function is_ours(mapping)
  return mapping ~= nil and vim.startswith(mapping.desc or '', DESC)
end

--- Returns the keys of a recursive mapping.
local function evaluate(mapping)
  local rhs = (mapping.rhs or ''):gsub('<SID>', ('<SNR>%d_'):format(mapping.sid))
  if mapping.expr == 1 then
    local keys = mapping.callback and mapping.callback() or vim.api.nvim_eval(vim.keycode(rhs))
    return mapping.replace_keycodes == 1 and vim.keycode(keys) or keys
  end
  return vim.keycode(rhs)
end

--- Returns the keys that do what a key does without codespec. A mapping whose result isn't mapped again gets a name, so
--- that Neovim runs it unchanged. For the others the result is returned, since a mapping that begins with itself ends
--- there.
---@param bufnr integer
---@param key string
---@return string
local function meaning(bufnr, key)
  local mapping = (covered[bufnr] or {})[key] or find(vim.api.nvim_get_keymap('i'), key)
  if not mapping then
    return vim.keycode(key)
  end
  if mapping.noremap == 0 and (mapping.expr == 1 or not mapping.callback) then
    return evaluate(mapping)
  end
  local code = vim.keycode(BEFORE)
  local lent = vim.tbl_extend('force', mapping, { lhs = BEFORE, lhsraw = code, buffer = 0 })
  lent.lhsrawalt = nil
  vim.fn.mapset('i', false, lent)
  return code
end

--- Maps the keys in a buffer.
---@param bufnr integer
---@param keys codespec.Keys
---@param shown fun(): string
function M.map(bufnr, keys, shown)
  covered[bufnr] = covered[bufnr] or {}
  for action, always in pairs(ACTIONS) do
    local key = keys[action]
    local there = key and of_buffer(bufnr, key) or nil
    if key and not is_ours(there) then
      covered[bufnr][key] = there
      vim.keymap.set('i', key, function()
        return (always or shown() ~= '') and vim.keycode(plug(action)) or meaning(bufnr, key)
      end, { buffer = bufnr, expr = true, remap = true, replace_keycodes = false, desc = DESC .. action })
    end
  end
end

--- Removes the mappings of a buffer and restores those before them.
---@param bufnr integer
function M.unmap(bufnr)
  if not vim.api.nvim_buf_is_valid(bufnr) then
    covered[bufnr] = nil
    return
  end
  for _, mapping in ipairs(vim.api.nvim_buf_get_keymap(bufnr, 'i')) do
    if is_ours(mapping) then
      vim.api.nvim_buf_del_keymap(bufnr, 'i', mapping.lhs)
    end
  end
  vim.api.nvim_buf_call(bufnr, function()
    for _, mapping in pairs(covered[bufnr] or {}) do
      vim.fn.mapset('i', false, mapping)
    end
  end)
  covered[bufnr] = nil
end

--- Returns conflicts by action: mappings of the buffer that were made after ours.
---@param bufnr integer
---@param keys codespec.Keys
---@return table<string, string>
function M.conflicts(bufnr, keys)
  local found = {}
  for action in pairs(ACTIONS) do
    local mapping = keys[action] and of_buffer(bufnr, keys[action])
    if mapping and not is_ours(mapping) then
      found[keys[action]] = mapping.desc or mapping.rhs or 'a function'
    end
  end
  return found
end

--- Defines the <Plug> mappings, to which users can map their own keys.
function M.define_plugs()
  for action in pairs(ACTIONS) do
    local run = ('<Cmd>lua require("codespec").%s()<CR>'):format(action)
    -- <C-g>u: accepted text is undone separately.
    vim.keymap.set('i', plug(action), (action:find('^accept') and '<C-g>u' or '') .. run)
  end
  vim.keymap.set('i', plug('ask'), '<Cmd>lua require("codespec").ask()<CR>')
end

return M
