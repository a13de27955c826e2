-- A source for blink.cmp: `providers = { codespec = { name = 'codespec', module = 'codespec.blink', async = true } }`.

local entries = require('codespec.entries')

local M = {}
M.__index = M

function M.new()
  return setmetatable({}, M)
end

function M.enabled()
  local options = require('codespec').options()
  return options ~= nil and options.enabled
end

function M.get_completions(_, context, callback)
  return entries.ask(context.trigger ~= nil and context.trigger.kind == 'manual', function(items)
    callback({ items = items, is_incomplete_forward = true, is_incomplete_backward = true })
  end)
end

function M.execute(_, context, item, callback, apply)
  apply()
  entries.taken(item, context.bufnr)
  callback()
end

return M
