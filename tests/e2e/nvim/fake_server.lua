-- A language server inside Neovim that answers with what a test plants: `_G.fake.edits` (hunks for the text as it is
-- then) and `_G.fake.ghost`. It records the requests for edits, the commands and the notifications.

_G.fake = { edits = {}, asked = {}, commands = {}, notified = {}, ghost = nil }

local CAPABILITIES = { positionEncoding = 'utf-8', textDocumentSync = 1, inlineCompletionProvider = vim.empty_dict() }

local answers = {
  initialize = function()
    return { capabilities = CAPABILITIES, serverInfo = { name = 'fake' } }
  end,
  ['codespec/nextEdit'] = function(params)
    table.insert(fake.asked, params.trigger)
    local hunks = table.remove(fake.edits, 1)
    if not hunks then
      return { edits = {}, reason = 'nothing is planted.' }
    end
    return { edits = { { id = #fake.asked, textDocument = params.textDocument, kind = 'near', hunks = hunks } } }
  end,
  ['textDocument/inlineCompletion'] = function(params)
    local here = params.position
    local range = { start = { line = here.line, character = 0 }, ['end'] = here }
    local line = vim.api.nvim_get_current_line():sub(1, here.character)
    return { items = fake.ghost and { { insertText = line .. fake.ghost, range = range } } or {} }
  end,
  ['workspace/executeCommand'] = function(params)
    table.insert(fake.commands, { params.command, unpack(params.arguments) })
  end,
}

local number = 0
local rpc = {
  request = function(method, params, callback, replied)
    number = number + 1
    local id = number
    vim.schedule(function()
      if replied then
        replied(id)
      end
      callback(nil, answers[method] and answers[method](params) or vim.NIL, id)
    end)
    return true, id
  end,
  notify = function(method)
    table.insert(fake.notified, method)
    return true
  end,
  is_closing = function()
    return false
  end,
  terminate = function() end,
}

local server = require('codespec.server')
local config = server.config
server.config = function(...)
  return vim.tbl_extend('force', config(...), {
    cmd = function()
      return rpc
    end,
  })
end
