-- `:checkhealth codespec`: checks Neovim, the command, the language server, the daemon and the keys, and suggests
-- fixes.

local M = {}

local keys = require('codespec.keys')
local native = require('codespec.native')
local server = require('codespec.server')

local WAIT_MS = 5000
local health = vim.health

local function check_neovim(options)
  local version = tostring(vim.version())
  if vim.fn.has('nvim-0.10') == 0 then
    return health.error(('Neovim %s is too old'):format(version), 'Install Neovim 0.10 or newer.')
  end
  local by_neovim = options.ghost_text ~= 'own' and native.exists()
  health.ok(('Neovim %s; ghost text is drawn by %s'):format(version, by_neovim and 'Neovim' or 'codespec'))
  if options.ghost_text == 'native' and not by_neovim then
    health.warn('ghost_text is "native", which requires Neovim 0.12', 'Set it to "auto".')
  end
end

local function check_command(options)
  local command, why = server.command(options)
  if not command then
    return health.error(why)
  end
  local program = vim.system({ command[1], '--version' }, { text = true }):wait(WAIT_MS)
  local said = vim.trim(program.stdout or '')
  if program.code ~= 0 then
    return health.warn(('%s --version ended with %d'):format(command[1], program.code), vim.trim(program.stderr or ''))
  end
  health.ok(('%s is %s'):format(command[1], said))
end

local function check_daemon(daemon)
  local where = ('the daemon at %s'):format(daemon.url)
  if daemon.state == 'ready' then
    health.ok(('%s is ready: target %s, drafter %s'):format(where, daemon.target, daemon.drafter))
    if type(daemon.offer) == 'table' then
      health.info(('`:CodespecPull` fetches %s to replace it'):format(daemon.offer.model))
    end
  elseif daemon.state == 'starting' then
    health.ok(('%s is starting'):format(where))
  elseif daemon.state == 'silent' then
    health.warn(('%s: %s'):format(where, daemon.message), 'It may only be busy: try again in a moment.')
  elseif daemon.state == 'absent' then
    health.info(('%s does not run: the next completion starts it, if the setting startDaemon allows'):format(where))
  else
    health.error(('%s can\'t serve: %s'):format(where, daemon.message), 'Run `codespec doctor`.')
  end
end

local function check_server(bufnr)
  local client = server.client()
  if not client then
    return server.why_not() and health.error(server.why_not())
      or health.info('no language server runs: it starts with the first file that is opened')
  end
  local attached = vim.tbl_count(client.attached_buffers)
  health.ok(('the language server runs (client %d, %d buffers)'):format(client.id, attached))
  local told
  server.request('codespec/status', vim.empty_dict(), function(_, result)
    told = result
  end, bufnr)
  vim.wait(WAIT_MS, function()
    return told ~= nil
  end, 10)
  if not told then
    return health.error('the language server does not answer', 'Run `:Codespec restart`, then look at `:Codespec log`.')
  end
  if told.kind == 'Error' then
    health.error(told.message)
  elseif told.message ~= '' then
    health.info(told.message)
  end
  check_daemon(told.daemon)
end

local function check_keys(bufnr, options)
  local conflicts = server.is_attached(bufnr) and keys.conflicts(bufnr, options.keys) or {}
  for key, what in pairs(conflicts) do
    health.warn(
      ('%s is mapped in this buffer after codespec mapped it (%s)'):format(key, what),
      'Choose another key in the option `keys`, or map a <Plug> of codespec there.'
    )
  end
  if not next(conflicts) then
    health.ok('nothing covers the keys')
  end
end

--- Writes the report.
function M.check()
  local options = require('codespec').options()
  -- The report has its own buffer, but is about the buffer from which it was requested.
  local bufnr = vim.fn.bufnr('#') > 0 and vim.fn.bufnr('#') or vim.api.nvim_get_current_buf()
  health.start('codespec')
  if not options then
    return health.warn('codespec is not started', 'Call `require("codespec").setup()`, or `:Codespec enable`.')
  end
  check_neovim(options)
  check_command(options)
  check_server(bufnr)
  check_keys(bufnr, options)
end

return M
