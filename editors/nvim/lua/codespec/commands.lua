-- The commands `:Codespec …` and their windows.

local M = {}

local server = require('codespec.server')

local DEFAULT_PAGE = 'http://127.0.0.1:8765'
local NO_SERVER = 'no language server runs: open a file, or see :checkhealth codespec.'

---@param lines string[]
local function say(lines)
  vim.api.nvim_echo({ { table.concat(lines, '\n') } }, true, {})
end

--- Sends a request to the server, or shows why none runs.
---@param method string
---@param params table
---@param then_ fun(result: any)
local function ask(method, params, then_)
  if not server.client() then
    return say({ 'codespec: ' .. (server.why_not() or NO_SERVER) })
  end
  server.request(method, params, function(err, result)
    if err then
      return say({ 'codespec: ' .. err.message })
    end
    then_(result)
  end, vim.api.nvim_get_current_buf())
end

---@return string
local function daemon_url()
  local options = require('codespec').options()
  return options and options.settings.url or DEFAULT_PAGE
end

--- Returns the daemon's state folder, by the rules of codespec/user_folders.py.
---@return string
local function state_folder()
  if (vim.env.XDG_STATE_HOME or '') ~= '' then
    return vim.fs.joinpath(vim.env.XDG_STATE_HOME, 'codespec')
  elseif vim.fn.has('mac') == 1 then
    return vim.fs.joinpath(vim.uv.os_homedir(), 'Library', 'Application Support', 'codespec')
  elseif vim.fn.has('win32') == 1 then
    return vim.fs.joinpath(vim.env.LOCALAPPDATA, 'codespec', 'codespec')
  end
  return vim.fs.joinpath(vim.uv.os_homedir(), '.local', 'state', 'codespec')
end

---@return string
local function daemon_log()
  return vim.fs.joinpath(state_folder(), ('daemon-%s.log'):format(daemon_url():match(':(%d+)/?$') or '80'))
end

---@param path string
local function open(path)
  if vim.fn.filereadable(path) == 0 then
    return say({ ('codespec: there is no log yet (%s).'):format(path) })
  end
  vim.cmd.tabedit({ vim.fn.fnameescape(path), magic = { file = false } })
  vim.bo.modifiable = false
  vim.cmd.normal({ 'G', bang = true })
end

--- Shows sentences in a window beside the cursor, which closes when the cursor moves.
---@param lines string[]
local function float(lines)
  vim.lsp.util.open_floating_preview(lines, 'markdown', { border = 'single', title = ' codespec ', max_width = 80 })
end

---@type table<string, fun(argument: string?)>
local commands = {
  enable = function(filetype)
    require('codespec').enable(true, filetype)
  end,
  disable = function(filetype)
    require('codespec').enable(false, filetype)
  end,
  toggle = function(filetype)
    local codespec = require('codespec')
    codespec.toggle(filetype)
    say({ ('codespec is %s%s.'):format(
      codespec.is_enabled(filetype) and 'on' or 'off',
      filetype and ' for ' .. filetype or ''
    ) })
  end,
  edit = function()
    require('codespec').edit()
  end,
  status = function()
    ask('codespec/status', vim.empty_dict(), function(told)
      say(require('codespec.status').sentences(told))
    end)
  end,
  restart = function(what)
    if what == 'daemon' then
      return require('codespec.offer').restart_daemon('the daemon starts again.')
    end
    require('codespec').restart()
  end,
  pull = function()
    require('codespec.offer').pull()
  end,
  log = function(which)
    open(which == 'daemon' and daemon_log() or vim.lsp.log.get_filename())
  end,
  page = function()
    local _, why = vim.ui.open(daemon_url() .. '/')
    if why then
      say({ ('codespec: open %s/ in a browser (%s).'):format(daemon_url(), why) })
    end
  end,
  explain = function()
    ask('workspace/executeCommand', { command = 'codespec.explain' }, function(told)
      float(told.sentences)
    end)
  end,
}

---@type table<string, fun(): string[]>
local arguments = {
  enable = function()
    return vim.fn.getcompletion('', 'filetype')
  end,
  log = function()
    return { 'daemon', 'server' }
  end,
  restart = function()
    return { 'daemon' }
  end,
}
arguments.disable, arguments.toggle = arguments.enable, arguments.enable

---@param all string[]
---@param lead string
local function beginning(all, lead)
  return vim.tbl_filter(function(each)
    return vim.startswith(each, lead)
  end, all)
end

---@return string[]
local function names()
  local all = vim.tbl_keys(commands)
  table.sort(all)
  return all
end

--- Runs a command; without a name, `status`.
---@param words string[]
function M.run(words)
  local command = commands[words[1] or 'status']
  if not command then
    return server.tell(('there is no `:Codespec %s`: there are %s.'):format(words[1], table.concat(names(), ', ')))
  end
  command(words[2])
end

--- Returns the completions at the cursor of the command line.
---@param lead string
---@param line string
---@return string[]
function M.complete(lead, line)
  local words = vim.split(vim.trim(line:sub(1, #line - #lead)), '%s+')
  if #words == 1 then
    return beginning(names(), lead)
  end
  return #words == 2 and arguments[words[2]] and beginning(arguments[words[2]](), lead) or {}
end

return M
