std = "luajit"
read_globals = { "vim" }
globals = { "vim.g", "vim.b", "vim.bo", "vim.o", "vim.env" }
max_line_length = 120
