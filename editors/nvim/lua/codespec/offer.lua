-- The server's offer of a better model than the starter pair: announced once, pulled in a terminal at the user's
-- request, and then loaded by the daemon.

local M = {}

local server = require('codespec.server')

local HEIGHT = 12
local NONE = 'no model is offered: `codespec models list` in a shell names all.'

---@type codespec.Offer?
local offered

--- Returns the path of the file that records that the user has seen the offer, here or in an earlier Neovim.
---@return string
local function mark()
  return vim.fs.joinpath(vim.fn.stdpath('state'), 'codespec-offered')
end

---@param sentence string
local function inform(sentence)
  server.tell(sentence, vim.log.levels.INFO)
end

--- Stores the server's offer, and announces it unless that was done before.
---@param offer codespec.Offer
function M.take(offer)
  offered = offer
  if vim.fn.filereadable(mark()) == 1 then
    return
  end
  vim.fn.mkdir(vim.fs.dirname(mark()), 'p')
  vim.fn.writefile({ offer.model }, mark())
  inform(offer.message .. ' `:CodespecPull` does it here.')
end

--- Returns the offer.
---@return codespec.Offer?
function M.now()
  return offered
end

--- Makes the daemon load its models again.
---@param done string the sentence to show once it has begun
function M.restart_daemon(done)
  local params = { command = 'codespec.restartDaemon' }
  local sent = server.request('workspace/executeCommand', params, function(err, result)
    local fault = err and err.message or result.message
    if fault == '' then
      inform(done)
    else
      server.tell(fault, vim.log.levels.WARN)
    end
  end, vim.api.nvim_get_current_buf())
  if not sent then
    server.tell('no language server runs, so it can\'t restart the daemon: open a file first.', vim.log.levels.WARN)
  end
end

---@param model string
---@param code integer
local function ended(model, code)
  if code ~= 0 then
    return server.tell(('%s was not pulled: the terminal says why.'):format(model))
  end
  offered = nil
  M.restart_daemon(('%s is here, and the daemon loads it.'):format(model))
end

--- Pulls the offered model in a terminal below.
function M.pull()
  local offer = offered
  if not offer then
    return inform(NONE)
  end
  vim.cmd(('botright %dnew'):format(HEIGHT))
  local how = {
    on_exit = function(_, code)
      ended(offer.model, code)
    end,
  }
  if vim.fn.has('nvim-0.11') == 1 then
    vim.fn.jobstart(offer.command, vim.tbl_extend('error', how, { term = true }))
  else
    vim.fn.termopen(offer.command, how)
  end
end

return M
