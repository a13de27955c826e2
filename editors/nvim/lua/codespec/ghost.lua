-- Ghost text: when to send a request, which part of an answer to show while the user types, and how to accept it.
-- `screen` draws it.

local Suggestion = require('codespec.suggestion')
local acceptance = require('codespec.acceptance')
local menu = require('codespec.menu')
local native = require('codespec.native')
local screen = require('codespec.screen')
local server = require('codespec.server')
local text = require('codespec.text')

local M = {}

local METHOD = 'textDocument/inlineCompletion'
local INVOKED, AUTOMATIC = 1, 2
local QUIET_MS = 50 -- between a change and its request: a burst of changes sends one request

---@class codespec.Ghost of one buffer
---@field suggestion codespec.Suggestion?
---@field shown string the text on the screen
---@field number integer of the last request; answers to older ones are dropped
---@field request integer? the running request
---@field dismissed integer? the changedtick at which the user dismissed the suggestion
---@field explicit integer? the changedtick of the last explicit request, which suppresses automatic ones
---@field client integer
---@field timer uv.uv_timer_t

---@type table<integer, codespec.Ghost>
local ghosts = {}
---@type fun() is called after something was shown or hidden
local drawn = function() end

---@return integer, integer, integer buffer, row from 0, byte column
local function here()
  local row, col = unpack(vim.api.nvim_win_get_cursor(0))
  return vim.api.nvim_get_current_buf(), row - 1, col
end

local function inserting()
  return vim.api.nvim_get_mode().mode:sub(1, 1) == 'i'
end

--- Updates the screen of the current buffer. While a menu is open, nothing is shown, because keys apply to its entries.
local function draw()
  local bufnr, row, col = here()
  local ghost = ghosts[bufnr]
  if not ghost then
    return
  end
  local suggestion = ghost.suggestion
  local may = suggestion and inserting() and not menu.is_open()
  local rest = may and suggestion:rest(row, col) or ''
  if rest ~= '' then
    screen.show(suggestion, row, col, rest)
  elseif ghost.shown ~= '' then
    screen.clear(bufnr)
  end
  ghost.shown = rest
  drawn()
end

---@param bufnr integer
local function forget(bufnr)
  local ghost = ghosts[bufnr]
  ghost.suggestion = nil
  ghost.timer:stop()
  if ghost.request then
    server.cancel(ghost.request)
    ghost.request = nil
  end
  screen.clear(bufnr)
  ghost.shown = ''
  drawn()
end

--- Registers a request. Returns the function that receives its answer, and drops one that comes too late.
---@param bufnr integer
---@param explicit boolean
---@param then_ fun(suggestion: codespec.Suggestion?)? called before it is drawn
---@return fun(err: lsp.ResponseError?, result: any)
local function asked(bufnr, explicit, then_)
  local ghost = ghosts[bufnr]
  local current, row, col = here()
  local tick = vim.api.nvim_buf_get_changedtick(bufnr)
  if not ghost or current ~= bufnr then
    return function() end
  end
  ghost.number = ghost.number + 1
  local number = ghost.number
  return function(err, result)
    local late = ghosts[bufnr] ~= ghost or ghost.number ~= number
    late = late or vim.api.nvim_get_current_buf() ~= bufnr or vim.api.nvim_buf_get_changedtick(bufnr) ~= tick
    if late or err or not result or not inserting() or (ghost.dismissed == tick and not explicit) then
      return
    end
    local place = { row = row, col = col, encoding = server.client().offset_encoding, explicit = explicit }
    ghost.suggestion = Suggestion.read(bufnr, result.items or result, place, ghost.suggestion)
    if then_ then
      then_(ghost.suggestion)
    end
    draw()
  end
end

--- Returns whether automatic requests are allowed for a buffer.
---@param bufnr integer
local function by_itself(bufnr)
  local ghost = ghosts[bufnr]
  return ghost and ghost.explicit ~= vim.api.nvim_buf_get_changedtick(bufnr) and vim.fn.reg_executing() == ''
end

--- Sends a request for the current buffer.
---@param explicit boolean
---@param then_ fun(suggestion: codespec.Suggestion?)?
local function ask(explicit, then_)
  local bufnr = vim.api.nvim_get_current_buf()
  local ghost, client = ghosts[bufnr], server.client()
  if not ghost or not client or not inserting() or not (explicit or by_itself(bufnr)) then
    return
  end
  if explicit then
    ghost.explicit = vim.api.nvim_buf_get_changedtick(bufnr)
  end
  if ghost.request then
    server.cancel(ghost.request)
  end
  local params = vim.lsp.util.make_position_params(0, client.offset_encoding)
  params.context = { triggerKind = explicit and INVOKED or AUTOMATIC }
  local answered = asked(bufnr, explicit, then_)
  native.aside(function()
    local request
    request = server.request(METHOD, params, function(err, result)
      if ghost.request == request then -- ignore a late answer
        ghost.request = nil
      end
      answered(err, result)
    end, bufnr)
    ghost.request = request
  end)
end

--- Sends a request for the current buffer, for a menu instead of the screen. Returns a function that cancels it; `done`
--- is called once, with nil if there is nothing to offer.
---@param explicit boolean
---@param done fun(suggestion: codespec.Suggestion?)
---@return fun()
function M.question(explicit, done)
  local client, request = server.client(), nil
  local bufnr, row, col = here()
  if not client or not ghosts[bufnr] then
    done(nil)
    return function() end
  end
  local params = vim.lsp.util.make_position_params(0, client.offset_encoding)
  params.context = { triggerKind = explicit and INVOKED or AUTOMATIC, whole = true } -- a menu's entry is not extended
  native.aside(function()
    request = server.request(METHOD, params, function(err, result)
      request = nil
      if err or not result then
        return done(nil)
      end
      local place = { row = row, col = col, encoding = client.offset_encoding, explicit = explicit }
      done(Suggestion.read(bufnr, result.items or result, place))
    end, bufnr)
  end)
  return function()
    if request then
      server.cancel(request)
    end
  end
end

--- Handles a change of the text or the cursor.
local function changed()
  draw()
  local ghost = ghosts[vim.api.nvim_get_current_buf()]
  if not ghost or screen.is_native() then
    return
  end
  ghost.timer:start(QUIET_MS, 0, vim.schedule_wrap(function()
    ask(false)
  end))
end

--- Handles the notification that the last answer has grown: requests it at once.
---@param params { uri: string, version: integer }
function M.more(params)
  local bufnr = vim.api.nvim_get_current_buf()
  local ghost = ghosts[bufnr]
  if not ghost or vim.uri_from_bufnr(bufnr) ~= params.uri or vim.lsp.util.buf_versions[bufnr] ~= params.version then
    return
  end
  if not ghost.suggestion or ghost.suggestion.index == 1 then
    ghost.explicit = nil
    ask(false)
  end
end

--- Returns the text that is shown at the cursor, or ''. Keys that are faster than the screen may have moved the cursor
--- along the shown text, or away from it.
---@return string
function M.shown()
  local bufnr, row, col = here()
  local ghost = ghosts[bufnr]
  if not ghost or ghost.shown == '' or menu.is_open() then
    return ''
  end
  return ghost.suggestion:rest(row, col)
end

--- Accepts all, or the next word, line or block, of the suggestion. Returns whether one was shown.
---@param how 'all'|'word'|'line'|'block'
---@return boolean
function M.accept(how)
  local bufnr, row, col = here()
  local rest = M.shown()
  if rest == '' then
    return false
  end
  local indent = vim.api.nvim_get_current_line():match('^%s*')
  local piece, suggestion = text.piece(rest, how, indent), ghosts[bufnr].suggestion
  local lines = vim.split(piece, '\n', { plain = true })
  vim.api.nvim_buf_set_text(bufnr, row, col, row, col, lines)
  row, col = row + #lines - 1, (#lines == 1 and col or 0) + #lines[#lines]
  vim.api.nvim_win_set_cursor(0, { row + 1, col })
  if piece == rest then
    acceptance.whole(suggestion)
    forget(bufnr)
  else
    acceptance.part(suggestion, row, col)
    draw()
  end
  return true
end

--- Shows the next (or previous) suggestion. Requests others the first time, and any if nothing is shown.
---@param step 1|-1
function M.select(step)
  local ghost = ghosts[vim.api.nvim_get_current_buf()]
  if not ghost then
    return
  end
  local shown, old = M.shown() ~= '', ghost.suggestion
  local function turn(suggestion)
    if suggestion and #suggestion.items > 1 then
      suggestion.index = (suggestion.index - 1 + step) % #suggestion.items + 1
    end
  end
  if shown and old and old.explicit then
    turn(old)
    return draw()
  end
  ask(true, shown and turn or nil)
end

--- Sends an explicit request, which also brings alternatives.
function M.ask()
  ask(true)
end

--- Hides the suggestion until the text changes. Returns whether one was shown.
---@return boolean
function M.dismiss()
  local bufnr = vim.api.nvim_get_current_buf()
  if M.shown() == '' then
    return false
  end
  forget(bufnr)
  ghosts[bufnr].dismissed = vim.api.nvim_buf_get_changedtick(bufnr)
  return true
end

--- Hides the suggestions of all buffers.
function M.clear()
  for bufnr in pairs(ghosts) do
    forget(bufnr)
  end
end

--- Enables ghost text in a buffer after a client has attached to it.
---@param bufnr integer
---@param client integer
function M.attach(bufnr, client)
  if ghosts[bufnr] then
    M.detach(bufnr, ghosts[bufnr].client)
  end
  ghosts[bufnr] = { client = client, shown = '', number = 0, timer = vim.uv.new_timer() }
  local group = vim.api.nvim_create_augroup('codespec.ghost:' .. bufnr, {})
  local function on(events, callback)
    vim.api.nvim_create_autocmd(events, { group = group, buffer = bufnr, callback = callback })
  end
  on({ 'InsertEnter', 'TextChangedI', 'CursorMovedI' }, changed)
  on({ 'TextChangedP', 'CompleteChanged', 'CompleteDone' }, draw)
  on({ 'InsertLeave', 'BufLeave' }, function()
    forget(bufnr)
  end)
  screen.attach(bufnr)
  if inserting() and vim.api.nvim_get_current_buf() == bufnr then
    -- The server became ready while the user was typing: do not wait for the next key.
    vim.api.nvim_exec_autocmds('CursorMovedI', { buffer = bufnr, modeline = false })
  end
end

--- Disables ghost text in a buffer that a client leaves. Returns whether it was the buffer's client: after a restart,
--- the old client may leave after the new one has attached.
---@param bufnr integer
---@param client integer
---@return boolean
function M.detach(bufnr, client)
  local ghost = ghosts[bufnr]
  if not ghost or ghost.client ~= client then
    return false
  end
  forget(bufnr)
  ghost.timer:close()
  screen.detach(bufnr)
  vim.api.nvim_del_augroup_by_name('codespec.ghost:' .. bufnr)
  ghosts[bufnr] = nil
  return true
end

--- Chooses whether Neovim or codespec draws, and begins to watch menus.
--- Returns an interceptor of the server's messages if one is needed.
---@param wanted 'auto'|'native'|'own'
---@param after fun() is called after ghost text or a menu was shown or hidden
---@return fun(rpc: vim.lsp.rpc.PublicClient)?
function M.use(wanted, after)
  drawn = after
  menu.watch(draw)
  return screen.use(wanted)
      and function(rpc)
        native.connect(rpc, function(bufnr)
          return by_itself(bufnr) and asked(bufnr, false) or nil
        end)
      end
    or nil
end

return M
