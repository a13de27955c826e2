-- Next edits: when to request one, which hunk of it to show, and how to jump to it, accept it and dismiss it.
-- `edit_screen` draws it. What is shown is what the key would do: nothing is shown while the key belongs to something
-- else.

local ghost = require('codespec.ghost')
local hunks = require('codespec.hunk')
local menu = require('codespec.menu')
local screen = require('codespec.edit_screen')
local server = require('codespec.server')

local M = {}

local METHOD = 'codespec/nextEdit'
local PAUSE_MS = 400 -- between a change and its request
local REST_MS = 150 -- between a movement of the cursor and its request
local RECENT_MS = 10000 -- after a change, movements of the cursor send requests

---@class codespec.PendingEdit
---@field bufnr integer
---@field version integer of the text
---@field id any
---@field index integer of the first hunk that is left, from 0
---@field hunks codespec.Hunk[] those left, in the order to visit
---@field whole boolean whether the change is shown, not only where it is
---@field jumped integer[]? row and column that the key jumped to
---@field shown boolean whether the server knows that it was shown

---@type codespec.PendingEdit?
local pending
---@type integer? the running request
local request
local number = 0 -- of the last request; answers to older ones are dropped
local eager = false
local last_row = -1
local changed_at = -RECENT_MS
---@type table<integer, integer> By buffer: the version in which the user dismissed an edit.
local dismissed = {}
---@type table<integer, integer> By buffer: the newest version that was handled.
local handled = {}

local timer = assert(vim.uv.new_timer())

---@return integer?
local function version_of(bufnr)
  return vim.lsp.util.buf_versions[bufnr] -- unlike the changedtick, the same after a write
end

---@return integer row from 0
local function cursor_row()
  return vim.api.nvim_win_get_cursor(0)[1] - 1
end

local function has_snippet()
  local luasnip = package.loaded['luasnip']
  return vim.snippet.active({ direction = 1 }) or (type(luasnip) == 'table' and luasnip.locally_jumpable(1))
end

--- Returns whether a tab would indent the line.
local function indents()
  local row, col = unpack(vim.api.nvim_win_get_cursor(0))
  local jumped = pending and pending.jumped
  if jumped and jumped[1] == row and jumped[2] == col then
    return false
  end
  return vim.api.nvim_get_current_line():sub(1, col):match('^%s*$') ~= nil
end

--- Returns whether the key would jump to the edit or accept it.
---@return boolean
function M.is_ready()
  local bufnr = vim.api.nvim_get_current_buf()
  if not pending or pending.bufnr ~= bufnr or pending.version ~= version_of(bufnr) or vim.fn.reg_executing() ~= '' then
    return false
  end
  local mode = vim.api.nvim_get_mode().mode
  if mode:sub(1, 1) == 'i' then
    return not menu.is_open() and ghost.shown() == '' and not has_snippet() and not indents()
  end
  return mode == 'n'
end

local function clear()
  if pending then
    screen.clear(pending.bufnr)
  end
end

--- Updates the screen.
function M.draw()
  if not pending or not M.is_ready() then
    return clear()
  end
  local row = cursor_row()
  pending.whole = pending.whole or eager or hunks.holds(pending.hunks[1], row)
  screen.show(pending.bufnr, pending.hunks[1], row, pending.whole)
  if not pending.shown then
    pending.shown = true
    server.notify('codespec/didShowEdit', { id = pending.id })
  end
end

local function cancel()
  timer:stop()
  if request then
    server.cancel(request)
    request = nil
  end
  number = number + 1
end

local function forget()
  clear()
  pending = nil
end

---@param edit table of the server's answer
---@param bufnr integer
---@param encoding string
---@return codespec.PendingEdit?
local function read(edit, bufnr, encoding)
  local found = {}
  for _, each in ipairs(edit.hunks) do
    table.insert(found, hunks.read(bufnr, each, encoding))
  end
  local fits = vim.uri_to_bufnr(edit.textDocument.uri) == bufnr and #found == #edit.hunks and #found > 0
  local version = edit.textDocument.version
  return fits and { bufnr = bufnr, version = version, id = edit.id, index = 0, hunks = found, shown = false } or nil
end

--- Requests an edit for the current buffer.
---@param trigger 'typing'|'moved'|'left insert'|'accepted'|'invoked'
local function ask(trigger)
  local bufnr, client = vim.api.nvim_get_current_buf(), server.client()
  local version, invoked = version_of(bufnr), trigger == 'invoked'
  local declined = vim.fn.reg_executing() ~= '' or dismissed[bufnr] == version
  if not client or not server.is_attached(bufnr) or (declined and not invoked) then
    return
  end
  cancel()
  local asked = number
  local params = vim.lsp.util.make_position_params(0, client.offset_encoding)
  params.textDocument.version, params.trigger = version, trigger
  request = server.request(METHOD, params, function(err, result)
    if asked ~= number then
      return
    end
    request = nil
    local edit = not err and result and result.edits[1]
    local found = edit and version_of(bufnr) == edit.textDocument.version and read(edit, bufnr, client.offset_encoding)
    if found then
      forget()
      pending = found
      pending.whole = invoked
      M.draw()
    elseif invoked then
      server.tell(err and err.message or result.reason, vim.log.levels.INFO)
    end
  end, bufnr)
end

---@param trigger 'typing'|'moved'
---@param ms integer
local function ask_later(trigger, ms)
  timer:start(ms, 0, vim.schedule_wrap(function()
    ask(trigger)
  end))
end

--- Handles a change of the text: hides the edit and requests another one soon.
local function changed()
  local bufnr = vim.api.nvim_get_current_buf()
  local version = version_of(bufnr)
  if handled[bufnr] == version then
    return
  end
  handled[bufnr], changed_at, last_row = version, vim.uv.now(), cursor_row()
  forget()
  cancel()
  ask_later('typing', PAUSE_MS)
end

local function moved()
  local bufnr, row = vim.api.nvim_get_current_buf(), cursor_row()
  if handled[bufnr] ~= version_of(bufnr) then
    return -- the change moved it
  end
  local is_other, is_recent = row ~= last_row, vim.uv.now() - changed_at <= RECENT_MS
  last_row = row
  if pending then
    M.draw()
  elseif is_other and is_recent then
    ask_later('moved', REST_MS)
  end
end

local function left_insert()
  vim.schedule(function() -- the cursor has yet to move
    if not pending then
      ask('left insert')
    end
  end)
end

--- Moves the cursor to a hunk: to the first change in it, or to the line above inserted lines.
---@param hunk codespec.Hunk
local function jump(hunk)
  local row, col = hunk.row, 0
  if #hunk.old == 0 then
    row = math.max(0, row - 1)
  elseif #hunk.new > 0 then
    local changes = hunks.changes(hunk.old[1], hunk.new[1])
    col = changes and changes[1] and changes[1].from or #hunk.old[1]:match('^%s*')
  end
  vim.cmd("normal! m'")
  vim.api.nvim_win_set_cursor(0, { row + 1, col })
  vim.cmd('normal! zv')
  pending.jumped, pending.whole = vim.api.nvim_win_get_cursor(0), true
  last_row = row
  M.draw()
end

--- Replaces a hunk's lines and puts the cursor at the end of its last change.
---@param hunk codespec.Hunk
local function apply(hunk)
  vim.api.nvim_buf_set_lines(0, hunk.row, hunk.row + #hunk.old, false, hunk.new)
  local row, line = hunk.row + #hunk.new - 1, hunk.new[#hunk.new]
  local changes = line and #hunk.old == #hunk.new and hunks.changes(line, hunk.old[#hunk.old])
  local last = changes and changes[#changes]
  local at = math.max(1, math.min(row + 1, vim.api.nvim_buf_line_count(0)))
  vim.api.nvim_win_set_cursor(0, { at, last and last.to or #(line or '') })
end

--- Applies the first hunk, and goes on with those that are left.
local function accept(edit)
  local hunk = table.remove(edit.hunks, 1)
  clear()
  apply(hunk)
  for _, each in ipairs(edit.hunks) do
    each.row = each.row > hunk.row and each.row + #hunk.new - #hunk.old or each.row
  end
  local params = { command = 'codespec.acceptEdit', arguments = { edit.id, edit.index } }
  server.request('workspace/executeCommand', params, function() end, edit.bufnr)
  edit.index, edit.version, edit.jumped, edit.whole = edit.index + 1, version_of(edit.bufnr), nil, false
  handled[edit.bufnr], changed_at, last_row = edit.version, vim.uv.now(), cursor_row()
  pending = edit.hunks[1] and edit or nil
  M.draw()
  ask('accepted')
end

--- Jumps to the edit, or accepts its hunk at the cursor. Returns whether one was shown.
---@return boolean
function M.take()
  if not M.is_ready() then
    return false
  end
  local edit = assert(pending)
  if hunks.holds(edit.hunks[1], cursor_row()) then
    accept(edit)
  else
    jump(edit.hunks[1])
  end
  return true
end

--- Hides the edit until the text changes. Returns whether one was shown.
---@return boolean
function M.dismiss()
  if not pending or not M.is_ready() then
    return false
  end
  local params = { command = 'codespec.dismissEdit', arguments = { pending.id } }
  server.request('workspace/executeCommand', params, function() end, pending.bufnr)
  dismissed[pending.bufnr] = pending.version
  forget()
  cancel()
  return true
end

--- Shows the whole edit, or requests one.
function M.reveal()
  if not M.is_ready() then
    return ask('invoked')
  end
  pending.whole = true
  M.draw()
end

--- Begins to watch a buffer after the server has attached to it.
---@param bufnr integer
---@param mode string the setting `nextEdit`
function M.attach(bufnr, mode)
  eager = mode == 'eager'
  handled[bufnr] = version_of(bufnr)
  local group = vim.api.nvim_create_augroup('codespec.edit:' .. bufnr, {})
  local function on(events, callback)
    vim.api.nvim_create_autocmd(events, { group = group, buffer = bufnr, callback = callback })
  end
  on({ 'TextChanged', 'TextChangedI', 'TextChangedP' }, changed)
  on({ 'CursorMoved', 'CursorMovedI' }, moved)
  on('InsertLeave', left_insert)
  on('ModeChanged', M.draw)
  on('BufLeave', function()
    forget()
    cancel()
  end)
end

--- Stops watching a buffer.
---@param bufnr integer
function M.detach(bufnr)
  if pending and pending.bufnr == bufnr then
    forget()
    cancel()
  end
  handled[bufnr], dismissed[bufnr] = nil, nil
  vim.api.nvim_create_augroup('codespec.edit:' .. bufnr, {}) -- empty
end

return M
