-- What the server says of itself and of the document in use, for status lines. Knows words; knows no server.

local M = {}

local MARKS = { Normal = '', Warning = '?', Error = '!', Inactive = ' off', Off = ' off' }

---@type codespec.Status
local now = { kind = 'Off', message = 'codespec is not started: call require("codespec").setup().', busy = false }

--- Takes what is so now, and lets status lines be drawn again.
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

--- A few characters: codespec, and what is not as usual: … starting, ? warning, ! error, off.
---@return string
function M.line()
  return 'codespec' .. (now.busy and '…' or MARKS[now.kind] or '')
end

--- Sentences for whoever asks, from the server's answer to `codespec/status`.
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
