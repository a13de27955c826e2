#!/usr/bin/env bash
# nvim.sh [WORDS]: Neovim 0.12 and 0.10 with the plugin, against the real language server, daemon and starter pair, by
# keys from outside and in a terminal. What the terminals show lies in .out/e2e/nvim; what is installed is kept in .e2e,
# or in $CODESPEC_E2E_CACHE. WORDS choose scenarios as pytest's -k does.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=.out/e2e/nvim
cache=$(mkdir -p "${CODESPEC_E2E_CACHE:-.e2e}" && cd "${CODESPEC_E2E_CACHE:-.e2e}" && pwd)
# A variable that begins with CODESPEC_ is a setting to the daemon, which knows no such one.
unset CODESPEC_E2E_CACHE
python=.venv/bin/python

need() { # need COMMAND DEBIAN-PACKAGE
  command -v "$1" >/dev/null && return
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2" >/dev/null
  command -v "$1" >/dev/null || { echo "nvim: '$1' is needed to test in Neovim: install it (Debian: $2)." >&2; exit 1; }
}
step() { # step NAME COMMAND...
  local start=$SECONDS
  "${@:2}" >"$out/install.log" 2>&1 || { cat "$out/install.log" >&2; echo "nvim: $1 failed." >&2; exit 1; }
  echo "nvim: $1 ($((SECONDS - start)) s)"
}

rm -rf "$out" && mkdir -p "$out"
for pair in patchelf:patchelf tmux:tmux luacheck:lua-check; do need "${pair%:*}" "${pair#*:}"; done
[ -x .venv/bin/codespec ] || "${PYTHON:-python3}" -m tools.make_venv
step "luacheck finds nothing" sh -c 'cd editors/nvim && luacheck --quiet .'
step "Neovim of Debian forky is there" tests/e2e/nvim/install.sh forky "$cache/nvim-forky"
step "Neovim of Debian trixie is there" tests/e2e/nvim/install.sh trixie "$cache/nvim-trixie"
[ -d "$cache/pynvim" ] || step "pynvim is there" "$python" -m pip install --quiet --target "$cache/pynvim" pynvim==0.6.0
NEOVIMS=
for suite in forky trixie; do
  NEOVIMS=$NEOVIMS${NEOVIMS:+:}$cache/nvim-$suite/bin/nvim
  echo "nvim: $suite has $("$cache/nvim-$suite/bin/nvim" --version | head -1)"
done
export CODESPEC_MODEL=starter NEOVIMS PYTHONPATH=$cache/pynvim
TERMINALS=$PWD/$out "$python" -m pytest -q -p tests.e2e.nvim.fixtures -p no:cacheprovider -o python_files='check_*.py' \
  -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning tests/e2e/nvim ${1:+-k "$1"}
