-- The options: their defaults, and a sentence for each invalid one.

local M = {}

local GHOST_TEXTS = { 'auto', 'native', 'own' }

-- The language server's settings and the types of their values. The server checks the ranges.
local SETTINGS = {
  budgetMs = 'number',
  invokedBudgetMs = 'number',
  maxTokens = 'number',
  alternatives = 'number',
  completion = 'string',
  more = 'boolean',
  snippets = 'boolean',
  exclude = 'table',
  secretFiles = 'table',
  notSecretFiles = 'table',
  url = 'string',
  tokenFile = 'string',
  startDaemon = 'boolean',
  model = 'string',
  daemonArguments = 'table',
  nextEdit = 'string',
  nextEditModel = 'boolean',
  nextEditBudgetMs = 'number',
}

---@return codespec.Options
local function defaults()
  return {
    enabled = true,
    cmd = nil,
    filetypes = {},
    ghost_text = 'auto',
    keys = {
      accept = '<Tab>',
      accept_word = '<M-Right>',
      accept_line = '<M-Down>',
      accept_block = '<M-End>',
      next = '<M-]>',
      previous = '<M-[>',
      dismiss = '<C-]>',
      accept_edit = '<Tab>',
      dismiss_edit = '<Esc>',
    },
    settings = {},
  }
end

---@param value any
---@param of string the type of every element
local function is_list(value, of)
  return vim.islist(value) and #vim.tbl_filter(function(each)
    return type(each) ~= of
  end, value) == 0
end

---@type table<string, fun(value: any): string?> By option: the requirement that `value` violates, or nil.
local MUST_BE = {
  enabled = function(value)
    return type(value) ~= 'boolean' and 'true or false' or nil
  end,
  cmd = function(value)
    return (not is_list(value, 'string') or #value == 0) and 'a list of texts such as { "codespec", "lsp" }' or nil
  end,
  filetypes = function(value)
    if type(value) ~= 'table' then
      return 'a table such as { markdown = false }'
    end
    for name, on in pairs(value) do
      if type(name) ~= 'string' or type(on) ~= 'boolean' then
        return 'a table such as { markdown = false }'
      end
    end
  end,
  ghost_text = function(value)
    return not vim.list_contains(GHOST_TEXTS, value) and 'one of auto, native, own' or nil
  end,
  keys = function(value)
    return type(value) ~= 'table' and 'a table such as { accept = "<Tab>" }' or nil
  end,
  settings = function(value)
    return type(value) ~= 'table' and 'a table such as { budgetMs = 600 }' or nil
  end,
}

---@param names string[]
local function listed(names)
  table.sort(names)
  return table.concat(names, ', ')
end

--- Copies the fields of a table that are known and have the right type.
---@param given table
---@param known table<string, any> by name, the facts for `must_be`
---@param must_be fun(name: string, value: any): string?
---@param path string prefix of an option's name in sentences
---@param faults string[] gets a sentence for each other field
---@return table<string, any>
local function take(given, known, must_be, path, faults)
  local taken = {}
  for name, value in pairs(given) do
    if known[name] == nil then
      local there = listed(vim.tbl_keys(known))
      table.insert(faults, ('there is no option `%s%s`: there are %s.'):format(path, name, there))
    else
      local wanted = must_be(name, value)
      if wanted then
        table.insert(faults, ('the option `%s%s` must be %s: it keeps its default.'):format(path, name, wanted))
      else
        taken[name] = value
      end
    end
  end
  return taken
end

local function key_must_be(_, value)
  return value ~= false and (type(value) ~= 'string' or value == '') and 'a key such as "<Tab>", or false' or nil
end

local function setting_must_be(name, value)
  return type(value) ~= SETTINGS[name] and ('a %s'):format(SETTINGS[name]) or nil
end

--- Returns the options, those of the user over the defaults, and a sentence for each invalid one.
---@param given any
---@return codespec.Options, string[]
function M.read(given)
  local options, faults = defaults(), {}
  if given ~= nil and type(given) ~= 'table' then
    return options, { 'setup takes a table of options, such as { keys = { accept = "<Tab>" } }.' }
  end
  local taken = take(given or {}, MUST_BE, function(name, value)
    return MUST_BE[name](value)
  end, '', faults)
  taken.keys = take(taken.keys or {}, options.keys, key_must_be, 'keys.', faults)
  if taken.keys.accept_edit == nil then
    taken.keys.accept_edit = taken.keys.accept -- whoever frees <Tab> means all of it
  end
  taken.settings = take(taken.settings or {}, SETTINGS, setting_must_be, 'settings.', faults)
  options = vim.tbl_deep_extend('force', options, taken)
  table.sort(faults)
  return options, faults
end

--- Returns how next edits are shown.
---@param options codespec.Options
---@return 'hint'|'eager'|'off'
function M.next_edit(options)
  return options.settings.nextEdit or 'hint'
end

--- Returns the options as the language server's settings.
---@param options codespec.Options
---@return table<string, any>
function M.server_settings(options)
  local languages = next(options.filetypes) and options.filetypes or vim.empty_dict()
  return vim.tbl_extend('force', options.settings, { enabled = options.enabled, languages = languages })
end

return M
