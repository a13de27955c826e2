-- Defines the commands and the <Plug> mappings. Nothing starts before `require('codespec').setup()` or
-- `:Codespec enable`.

if vim.g.loaded_codespec then
  return
end
vim.g.loaded_codespec = true

vim.api.nvim_create_user_command('Codespec', function(call)
  require('codespec.commands').run(call.fargs)
end, {
  nargs = '*',
  desc = 'codespec: enable, disable, toggle, status, restart, pull, log, page, explain',
  complete = function(lead, line)
    return require('codespec.commands').complete(lead, line)
  end,
})

vim.api.nvim_create_user_command('CodespecPull', function()
  require('codespec.offer').pull()
end, { desc = 'codespec: pull the model that is offered in place of the starter pair' })

require('codespec.keys').define_plugs()
