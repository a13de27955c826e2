-- The status of the server and of the document in use, in words, for status lines.

local M = {}

local MARKS = { Normal = '', Warning = '?', Error = '!', Inactive = ' off', Off = ' off' }

---@type codespec.Status
local now = { kind = 'Off', message = 'codespec is not started: call require("codespec").setup().', busy = false }

--- Stores the new status and redraws the status lines.
---@param status codespec.Status
function M.take(status)
  now = { kind = status.kind, message = status.message or '', busy = status.busy or false }
  vim.api.nvim_exec_autocmds('User', { pattern = 'CodespecStatus', modeline = false })
  vim.cmd.redrawstatus({ bang = true })
end

---@return codespec.Status
function M.now()
  return vim.deepcopy(now)
end

--- Returns a few characters: codespec, with a sign for … starting, ? warning, ! error, or off.
---@return string
function M.line()
  return 'codespec' .. (now.busy and '…' or MARKS[now.kind] or '')
end

--- Returns the server's answer to `codespec/status` as sentences.
---@param told table
---@return string[]
function M.sentences(told)
  local daemon, counters, last = told.daemon or {}, told.counters or {}, told.last
  local lines = { ('%s%s'):format(told.kind, told.message ~= '' and ': ' .. told.message or '') }
  table.insert(lines, ('daemon: %s at %s'):format(daemon.state or 'unknown', daemon.url or '?'))
  if (daemon.target or '') ~= '' then
    table.insert(lines, ('models: target %s, drafter %s'):format(daemon.target, daemon.drafter))
  end
  if (counters.shown or 0) > 0 then
    local share, taken = 100 * counters.acceptance, counters.accepted + counters.partlyAccepted
    table.insert(lines, ('suggestions taken: %d of %d (%.0f %%)'):format(taken, counters.shown, share))
  end
  if type(counters.lastMs) == 'number' then
    table.insert(lines, ('last answer after %.0f ms, median %.0f ms'):format(counters.lastMs, counters.medianMs))
  end
  if type(last) == 'table' and type(last.speedUp) == 'number' then
    table.insert(lines, ('last completion: %.1f × as fast as plain decoding'):format(last.speedUp))
  end
  return lines
end

return M
