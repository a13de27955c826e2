-- A source for nvim-cmp: `require('cmp').register_source('codespec', require('codespec.cmp'))`, then
-- `sources = { { name = 'codespec' } }`.

local entries = require('codespec.entries')

local M = {}

local MANUAL = 1 -- nvim-cmp's reason for an explicit request

function M.is_available()
  local options = require('codespec').options()
  return options ~= nil and options.enabled
end

function M.get_position_encoding_kind()
  return 'utf-8'
end

function M.complete(_, params, callback)
  local context = params.completion_context or {}
  entries.ask(context.triggerKind == MANUAL and params.context.option.reason == 'manual', function(items)
    callback({ items = items, isIncomplete = true })
  end)
end

function M.execute(_, item, callback)
  entries.taken(item, vim.api.nvim_get_current_buf())
  callback(item)
end

return M
