-- The language server: finds it, starts it, sends it the settings, and restarts it if it ends. One server for all
-- buffers of this Neovim.

local M = {}

local NAME = 'codespec'
local MAX_RESTARTS = 3
local NO_COMMAND = 'there is no `codespec` on PATH: '
  .. [[install it (`pip install . ./native ./weights` in codespec's checkout) or set the option `cmd`.]]

---@class codespec.Server
---@field id integer? of the client, while it runs
---@field restarts integer number of restarts
---@field why string? the reason why it can't be started
---@field fails fun(why: string) is called with that reason
---@field starts fun(): vim.lsp.ClientConfig?
local server = { restarts = 0 }

--- Notifies the user, later: an error message during an autocommand would abort it.
---@param sentence string
---@param level integer?
function M.tell(sentence, level)
  vim.schedule(function()
    vim.notify('codespec: ' .. sentence, level or vim.log.levels.ERROR)
  end)
end

--- Records that no server can run; none is started until the user tries again.
---@param why string
local function fail(why)
  server.why = why
  server.fails(why)
  M.tell(why)
end

--- Returns the command that starts the server, or the reason why it can't be started.
---@param options codespec.Options
---@return string[]?, string?
function M.command(options)
  if options.cmd then
    if vim.fn.executable(options.cmd[1]) == 0 then
      return nil, ('`%s` can\'t be run: correct the option `cmd`.'):format(options.cmd[1])
    end
    return options.cmd
  end
  local found = vim.fn.exepath('codespec')
  if found == '' then
    return nil, NO_COMMAND
  end
  return { found, 'lsp' }
end

---@return vim.lsp.Client?
function M.client()
  local client = server.id and vim.lsp.get_client_by_id(server.id)
  return client and not client.is_stopped(client) and client or nil
end

-- Since 0.11, a client's functions are methods.
local function call(name, ...)
  local client = M.client()
  if not client then
    return false
  elseif vim.fn.has('nvim-0.11') == 1 then
    return client[name](client, ...)
  end
  return client[name](...)
end

--- Sends a request after the changes of its buffer. Returns its id.
---@param method string
---@param params table
---@param handler fun(err: lsp.ResponseError?, result: any)
---@param bufnr integer
---@return integer?
function M.request(method, params, handler, bufnr)
  local sent, id = call('request', method, params, handler, bufnr)
  return sent and id or nil
end

---@param method string
---@param params table
function M.notify(method, params)
  call('notify', method, params)
end

---@param id integer
function M.cancel(id)
  call('cancel_request', id)
end

--- Returns whether a buffer is a file. The server decides which files are completed.
---@param bufnr integer
---@return boolean
function M.takes(bufnr)
  return vim.api.nvim_buf_is_loaded(bufnr) and vim.bo[bufnr].buftype == '' and vim.api.nvim_buf_get_name(bufnr) ~= ''
end

---@param bufnr integer
---@return boolean
function M.is_attached(bufnr)
  return server.id ~= nil and vim.lsp.buf_is_attached(bufnr, server.id)
end

---@param bufnr integer
---@return string
local function root_of(bufnr)
  return vim.fs.root(bufnr, '.git') or vim.fs.dirname(vim.api.nvim_buf_get_name(bufnr))
end

--- Adds a project that was opened later to the running server.
---@param client vim.lsp.Client
---@param root string
local function add_folder(client, root)
  local uri = vim.uri_from_fname(root)
  for _, folder in ipairs(client.workspace_folders or {}) do
    if folder.uri == uri then
      return
    end
  end
  local folder = { uri = uri, name = root }
  client.workspace_folders = vim.list_extend(client.workspace_folders or {}, { folder })
  M.notify('workspace/didChangeWorkspaceFolders', { event = { added = { folder }, removed = {} } })
end

--- Attaches the server to a buffer, and starts it for the first one.
---@param bufnr integer
function M.attach(bufnr)
  if not M.takes(bufnr) or M.is_attached(bufnr) or server.why or not server.starts then
    return
  end
  local config, why = server.starts()
  if not config then
    return fail(why)
  end
  local running = M.client()
  config.root_dir = root_of(bufnr)
  server.id = vim.lsp.start(config, {
    bufnr = bufnr,
    reuse_client = function(client)
      return running ~= nil and client.id == running.id
    end,
  })
  if running then
    add_folder(running, config.root_dir)
  end
end

--- Attaches every buffer that is in a window.
function M.attach_shown()
  for _, window in ipairs(vim.api.nvim_list_wins()) do
    M.attach(vim.api.nvim_win_get_buf(window))
  end
end

---@param code integer
---@param signal integer
---@param id integer
local function ended(code, signal, id)
  if id ~= server.id or vim.v.exiting ~= vim.NIL then
    return
  end
  server.id = nil
  if server.restarts >= MAX_RESTARTS then
    local how = signal ~= 0 and ('by signal %d'):format(signal) or ('with exit code %d'):format(code)
    return fail(('the language server ended %s: see :Codespec log, then :Codespec restart.'):format(how))
  end
  server.restarts = server.restarts + 1
  M.attach_shown()
end

--- Returns the configuration of the client.
---@param command string[]
---@param options codespec.Options
---@param handlers table<string, function>
---@param connect? fun(rpc: vim.lsp.rpc.PublicClient) sees the stream before the client does
---@return vim.lsp.ClientConfig
function M.config(command, options, handlers, connect)
  local settings = require('codespec.config').server_settings(options)
  local capabilities = vim.lsp.protocol.make_client_capabilities()
  capabilities.textDocument.inlineCompletion = { dynamicRegistration = false }
  capabilities.experimental = { codespec = { more = true } } -- `ghost.more` extends what is shown
  return {
    name = NAME,
    cmd = function(dispatchers)
      local rpc = vim.lsp.rpc.start(command, dispatchers)
      if connect and rpc then
        connect(rpc)
      end
      return rpc
    end,
    init_options = settings,
    settings = { codespec = settings },
    capabilities = capabilities,
    handlers = handlers,
    on_exit = vim.schedule_wrap(ended),
  }
end

--- Enables the attachment of buffers.
---@param starts fun(): vim.lsp.ClientConfig?, string? returns the configuration, or nil and the reason
---@param fails fun(why: string) is called if no server can be started
function M.start(starts, fails)
  server.starts, server.fails, server.why, server.restarts = starts, fails, nil, 0
  M.attach_shown()
end

--- Stops the server and the attachment of buffers.
function M.stop()
  local client = M.client()
  server.starts, server.id = nil, nil
  if client and vim.fn.has('nvim-0.11') == 1 then
    client:stop()
  elseif client then
    client.stop()
  end
end

--- Sends changed settings to the running server.
---@param settings table<string, any>
function M.use(settings)
  M.notify('workspace/didChangeConfiguration', { settings = { codespec = settings } })
end

--- Returns the reason why no server can be started, if there is one.
---@return string?
function M.why_not()
  return server.why
end

return M
