-- Detects whether a completion menu is open: Neovim's own, blink.cmp's or nvim-cmp's. Those two plugins draw windows,
-- so only their events reveal it.

local M = {}

---@type table<string, true?> By plugin: its menu is open.
local open = {}
---@type fun()
local changed = function() end
local watched ---@type table? the nvim-cmp whose events are handled

---@param plugin string
---@param is_open boolean
local function told(plugin, is_open)
  open[plugin] = is_open or nil
  changed()
end

--- Registers with nvim-cmp, which has no autocommands and is often loaded after this plugin.
local function watch_cmp()
  local cmp = package.loaded['cmp']
  if type(cmp) ~= 'table' or cmp == watched or not cmp.event then
    return
  end
  watched = cmp
  cmp.event:on('menu_opened', function()
    told('cmp', true)
  end)
  cmp.event:on('menu_closed', function()
    told('cmp', false)
  end)
end

--- Calls `callback` whenever a plugin's menu opens or closes from now on.
---@param callback fun()
function M.watch(callback)
  changed = callback
  local group = vim.api.nvim_create_augroup('codespec.menu', {})
  for event, is_open in pairs({ BlinkCmpMenuOpen = true, BlinkCmpMenuClose = false }) do
    vim.api.nvim_create_autocmd('User', {
      group = group,
      pattern = event,
      callback = function()
        told('blink', is_open)
      end,
    })
  end
end

---@return boolean
function M.is_open()
  watch_cmp()
  return vim.fn.pumvisible() ~= 0 or next(open) ~= nil
end

return M
