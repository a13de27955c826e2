-- The keys. While ghost text or a next edit is shown, a key runs its action; otherwise it keeps its previous meaning:
-- another mapping of the buffer, a global one, or the key itself.

local M = {}

local BEFORE = '<Plug>(codespec-before)'
local DESC = 'codespec: '

-- Of two actions of one key, the first one that can run does.
local ACTIONS = {
  i = {
    'accept',
    'accept_word',
    'accept_line',
    'accept_block',
    'next',
    'previous',
    'dismiss',
    'accept_edit',
    'dismiss_edit',
  },
  n = { 'accept_edit', 'dismiss_edit' },
}

---@type table<integer, table<string, table<string, table>>> By buffer, mode and key: the mapping that ours replaces.
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
---@param mode 'i'|'n'
---@param key string
---@return table?
local function of_buffer(bufnr, mode, key)
  return find(vim.api.nvim_buf_get_keymap(bufnr, mode), key)
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
---@param mode 'i'|'n'
---@param key string
---@return string
local function meaning(bufnr, mode, key)
  local mapping = (covered[bufnr] or { i = {}, n = {} })[mode][key] or find(vim.api.nvim_get_keymap(mode), key)
  if not mapping then
    return vim.keycode(key)
  end
  if mapping.noremap == 0 and (mapping.expr == 1 or not mapping.callback) then
    return evaluate(mapping)
  end
  local code = vim.keycode(BEFORE)
  local lent = vim.tbl_extend('force', mapping, { lhs = BEFORE, lhsraw = code, buffer = 0 })
  lent.lhsrawalt = nil
  vim.fn.mapset(mode, false, lent)
  return code
end

--- Returns the actions of each key of a mode, in their order.
---@param keys codespec.Keys
---@param mode 'i'|'n'
---@return table<string, string[]>
local function by_key(keys, mode)
  local found = {}
  for _, action in ipairs(ACTIONS[mode]) do
    local key = keys[action]
    if key then
      found[key] = vim.list_extend(found[key] or {}, { action })
    end
  end
  return found
end

--- Returns the keys that run the first action that can run, or those that do what the key did before.
---@param actions string[]
---@param can fun(action: string): boolean
---@param before fun(): string
---@param key string
---@param mode 'i'|'n'
---@return string
local function run(actions, can, before, key, mode)
  for _, action in ipairs(actions) do
    if can(action) then
      local also = mode == 'i' and action == 'dismiss_edit' and key or '' -- it still leaves insert mode
      return vim.keycode(plug(action) .. also)
    end
  end
  return before()
end

--- Maps the keys in a buffer.
---@param bufnr integer
---@param keys codespec.Keys
---@param can fun(action: string): boolean returns whether an action can run now
function M.map(bufnr, keys, can)
  covered[bufnr] = covered[bufnr] or { i = {}, n = {} }
  for mode in pairs(ACTIONS) do
    for key, actions in pairs(by_key(keys, mode)) do
      local there = of_buffer(bufnr, mode, key)
      if not is_ours(there) then
        covered[bufnr][mode][key] = there
        vim.keymap.set(mode, key, function()
          return run(actions, can, function()
            return meaning(bufnr, mode, key)
          end, key, mode)
        end, { buffer = bufnr, expr = true, remap = true, replace_keycodes = false, desc = DESC .. actions[1] })
      end
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
  for mode in pairs(ACTIONS) do
    for _, mapping in ipairs(vim.api.nvim_buf_get_keymap(bufnr, mode)) do
      if is_ours(mapping) then
        vim.api.nvim_buf_del_keymap(bufnr, mode, mapping.lhs)
      end
    end
  end
  vim.api.nvim_buf_call(bufnr, function()
    for mode, mappings in pairs(covered[bufnr] or {}) do
      for _, mapping in pairs(mappings) do
        vim.fn.mapset(mode, false, mapping)
      end
    end
  end)
  covered[bufnr] = nil
end

--- Returns conflicts by key: mappings of the buffer that were made after ours.
---@param bufnr integer
---@param keys codespec.Keys
---@return table<string, string>
function M.conflicts(bufnr, keys)
  local found = {}
  for mode in pairs(ACTIONS) do
    for key in pairs(by_key(keys, mode)) do
      local mapping = of_buffer(bufnr, mode, key)
      if mapping and not is_ours(mapping) then
        found[key] = mapping.desc or mapping.rhs or 'a function'
      end
    end
  end
  return found
end

--- Defines the <Plug> mappings, to which users can map their own keys.
function M.define_plugs()
  for mode, actions in pairs(ACTIONS) do
    for _, action in ipairs(actions) do
      local call = ('<Cmd>lua require("codespec").%s()<CR>'):format(action)
      if mode == 'i' and action:find('^accept') then
        call = '<C-g>u' .. call .. '<C-g>u' -- accepted text is undone separately
      end
      vim.keymap.set(mode, plug(action), call)
    end
  end
  vim.keymap.set('i', plug('ask'), '<Cmd>lua require("codespec").ask()<CR>')
  vim.keymap.set({ 'i', 'n' }, plug('edit'), '<Cmd>lua require("codespec").edit()<CR>')
end

return M
