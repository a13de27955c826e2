-- codespec for Neovim: ghost text that a small model drafts and a large one verifies. This is the whole public API.
-- Every function can be called before `setup` and then does nothing.

local config = require('codespec.config')
local edit_screen = require('codespec.edit_screen')
local ghost = require('codespec.ghost')
local keys = require('codespec.keys')
local next_edit = require('codespec.next_edit')
local offer = require('codespec.offer')
local server = require('codespec.server')
local status = require('codespec.status')

local M = {}

local REST_MS = 150 -- between the last movement of the cursor and telling the server its place

---@type codespec.Options?
local options

local resting = assert(vim.uv.new_timer())

-- Handlers of the server's notifications.
local handlers = {
  ['didChangeStatus'] = function(_, told)
    status.take(told)
  end,
  ['codespec/more'] = function(_, params)
    ghost.more(params)
  end,
  ['codespec/offer'] = function(_, params)
    offer.take(params)
  end,
}

---@return vim.lsp.ClientConfig?, string?
local function starts()
  local command, why = server.command(assert(options))
  if not command then
    return nil, why
  end
  return server.config(command, options, handlers, ghost.use(options.ghost_text, next_edit.draw))
end

---@param why string
local function fails(why)
  status.take({ kind = 'Error', message = why, busy = false })
end

--- Returns whether an action of a key can run now.
---@param action string
---@return boolean
local function can(action)
  if action == 'accept_edit' or action == 'dismiss_edit' then
    return next_edit.is_ready()
  end
  return action == 'next' or action == 'previous' or ghost.shown() ~= ''
end

---@param event { buf: integer, data: { client_id: integer } }
local function attached(event)
  local client = server.client()
  if not client or client.id ~= event.data.client_id or not options then
    return
  end
  ghost.attach(event.buf, client.id)
  local mode = config.next_edit(options)
  if mode ~= 'off' then
    next_edit.attach(event.buf, mode)
  end
  -- Runs after the mappings that file type plugins make in the same event, because ours wrap them.
  vim.schedule(function()
    if vim.api.nvim_buf_is_valid(event.buf) and server.is_attached(event.buf) then
      keys.map(event.buf, options.keys, can)
    end
  end)
end

---@param event { buf: integer, data: { client_id: integer } }
local function detached(event)
  if ghost.detach(event.buf, event.data.client_id) then
    next_edit.detach(event.buf)
    keys.unmap(event.buf)
  end
end

-- Tells the server where the cursor is, which has the prompt there read before the next key.
local function focused()
  local client = server.client()
  if client and server.is_attached(vim.api.nvim_get_current_buf()) then
    server.notify('textDocument/didFocus', vim.lsp.util.make_position_params(0, client.offset_encoding))
  end
end

local function entered(event)
  server.attach(event.buf)
  focused()
end

local function moved()
  resting:start(REST_MS, 0, vim.schedule_wrap(focused))
end

local function watch()
  local group = vim.api.nvim_create_augroup('codespec', {})
  local function on(events, callback)
    vim.api.nvim_create_autocmd(events, { group = group, callback = callback })
  end
  on('LspAttach', attached)
  on('LspDetach', detached)
  on({ 'BufEnter', 'FileType', 'BufFilePost' }, entered)
  on('CursorMoved', moved) -- in insert mode, requests say where it is
  on('ColorScheme', edit_screen.define_highlights)
end

--- Starts codespec. Invalid options are reported and keep their defaults.
---@param given? table fields of codespec.Options, each optional
function M.setup(given)
  if vim.fn.has('nvim-0.10') == 0 then
    return server.tell('Neovim 0.10 or newer is needed.')
  end
  local faults
  options, faults = config.read(given)
  for _, fault in ipairs(faults) do
    server.tell(fault, vim.log.levels.WARN)
  end
  local muted = vim.fn.hlexists('ComplHint') == 1 and 'ComplHint' or 'NonText'
  vim.api.nvim_set_hl(0, 'CodespecGhost', { link = muted, default = true })
  vim.api.nvim_set_hl(0, 'CodespecHint', { link = 'Comment', default = true })
  edit_screen.define_highlights()
  watch()
  M.restart()
end

--- Returns the current options, or nil before `setup`.
---@return codespec.Options?
function M.options()
  return options
end

--- Accepts the whole suggestion. Returns whether one was shown.
---@return boolean
function M.accept()
  return ghost.accept('all')
end

--- Accepts the next word of the suggestion.
---@return boolean
function M.accept_word()
  return ghost.accept('word')
end

--- Accepts the next line of the suggestion.
---@return boolean
function M.accept_line()
  return ghost.accept('line')
end

--- Accepts the next line of the suggestion with its body and the line that closes the body.
---@return boolean
function M.accept_block()
  return ghost.accept('block')
end

--- Shows the next suggestion, or requests some if none is shown.
function M.next()
  ghost.select(1)
end

--- Shows the previous suggestion, or requests some if none is shown.
function M.previous()
  ghost.select(-1)
end

--- Requests suggestions at once.
function M.ask()
  ghost.ask()
end

--- Hides the suggestion until the text changes. Returns whether one was shown.
---@return boolean
function M.dismiss()
  return ghost.dismiss()
end

--- Shows the whole of the next edit, or requests one.
function M.edit()
  next_edit.reveal()
end

--- Jumps to the next edit, or accepts it if the cursor is there. Returns whether one was shown.
---@return boolean
function M.accept_edit()
  return next_edit.take()
end

--- Hides the next edit until the text changes. Returns whether one was shown.
---@return boolean
function M.dismiss_edit()
  return next_edit.dismiss()
end

--- Returns the text that is shown at the cursor, or ''.
---@return string
function M.shown()
  return ghost.shown()
end

--- Switches completion on or off, for all files or for a file type.
---@param on boolean
---@param filetype? string
function M.enable(on, filetype)
  if not options then
    return on and M.setup() or nil
  end
  if filetype then
    options.filetypes[filetype] = on
  else
    options.enabled = on
  end
  ghost.clear()
  server.use(config.server_settings(options))
end

--- Returns whether completion is on, for all files or for a file type.
---@param filetype? string
---@return boolean
function M.is_enabled(filetype)
  return options ~= nil and options.enabled and (not filetype or options.filetypes[filetype] ~= false)
end

--- Toggles completion, for all files or for a file type.
---@param filetype? string
function M.toggle(filetype)
  M.enable(not M.is_enabled(filetype), filetype)
end

--- Restarts the language server.
function M.restart()
  if options then
    server.stop()
    status.take({ kind = 'Normal', message = '', busy = false })
    server.start(starts, fails)
  end
end

--- Returns the status: a kind (Normal, Warning, Error, Inactive, Off) and one sentence.
---@return codespec.Status
function M.status()
  return status.now()
end

--- Returns a text for status lines: `codespec`, with a sign for anything unusual.
---@return string
function M.statusline()
  return status.line()
end

return M
