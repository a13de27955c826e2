#!/usr/bin/env bash
# screen.sh NVIM OUT NAME URL STATE: Neovim in a real terminal. What the terminal shows lies in OUT/NAME-*.txt; the file
# that is saved must hold what the terminal showed. STATE is $XDG_STATE_HOME, by which the daemon is known as one's own.
set -euo pipefail
nvim=$1 out=$2 name=$3 url=$4 state=$5
root=$(cd "$(dirname "$0")/../../.." && pwd)
work=$(mktemp -d)
terminal="codespec-$$"
trap 'tmux -L "$terminal" kill-server 2>/dev/null || true; rm -rf "$work"' EXIT
mkdir -p "$work/.git"
printf 'def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n' >"$work/example.py"
cat >"$work/init.lua" <<LUA
vim.opt.runtimepath:prepend('$root/editors/nvim')
vim.o.statusline = '%f %m %=%{v:lua.require("codespec").statusline()} '
require('codespec').setup({ cmd = { '$root/.venv/bin/codespec', 'lsp' }, settings = { url = '$url' } })
LUA

show() { tmux -L "$terminal" capture-pane -p -t editor | sed 's/ *$//'; }
line() { show | grep -A 1 'def subtract' | tail -1; } # the one that is typed
send() { tmux -L "$terminal" send-keys -t editor "$@"; }
await() { # await WHAT PART PATTERN: until that part of the screen has it
  for _ in $(seq 300); do
    "$2" | grep -qE "$3" && return
    sleep 0.1
  done
  show >&2
  echo "nvim: the terminal does not show $1." >&2
  exit 1
}

folders=(XDG_CONFIG_HOME="$work/c" XDG_DATA_HOME="$work/d" XDG_STATE_HOME="$state" XDG_CACHE_HOME="$work/k")
tmux -L "$terminal" -f /dev/null new-session -d -s editor -x 60 -y 12 -c "$work" \
  "env TERM=screen-256color ${folders[*]} $nvim -u $work/init.lua -i NONE -n example.py"
await "the file" show 'def subtract'
send G o
send -l 'return '
await "ghost text" line '^ +return +[^ ]'
until [ "$(line)" = "$(sleep 0.7; line)" ]; do :; done # it grows while it is written
show >"$out/$name-ghost.txt"
ghost=$(line)
send Tab Escape
send ':wq' Enter
for _ in $(seq 100); do tmux -L "$terminal" has-session 2>/dev/null || break; sleep 0.1; done
tail -1 "$work/example.py" >"$out/$name-saved.txt"
[ "$(cat "$out/$name-saved.txt")" = "$ghost" ] ||
  { echo "nvim: the terminal showed '$ghost', the file has '$(cat "$out/$name-saved.txt")'." >&2; exit 1; }
echo "nvim: $name in a terminal: '$ghost' was shown, taken and saved"
