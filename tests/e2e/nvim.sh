#!/usr/bin/env bash
# nvim.sh [WORDS]: Neovim 0.12 and 0.10 with the plugin, against the real language server, daemon and starter pair, by
# keys from outside and in a terminal. What the terminals show lies in .out/e2e/nvim; WORDS choose scenarios as
# pytest's -k does. COPILOT_CLIENTS names a folder with checkouts of sidekick.nvim and copilot-lsp, which are tried, too.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=.out/e2e/nvim
cache=$(mkdir -p "${E2E_CACHE:-.e2e}" && cd "${E2E_CACHE:-.e2e}" && pwd)
python=.venv/bin/python

tests/e2e/install.sh nvim
rm -rf "$out" && mkdir -p "$out"
(cd editors/nvim && luacheck --quiet .)
echo "nvim: luacheck finds nothing"
NEOVIMS=
for suite in forky trixie; do
  NEOVIMS=$NEOVIMS${NEOVIMS:+:}$cache/nvim-$suite/bin/nvim
  echo "nvim: $suite has $("$cache/nvim-$suite/bin/nvim" --version | head -1)"
done
export CODESPEC_MODEL=starter NEOVIMS PYTHONPATH=$cache/pynvim
TERMINALS=$PWD/$out "$python" -m pytest -q -p tests.e2e.nvim.fixtures -p no:cacheprovider -o python_files='check_*.py' \
  -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning tests/e2e/nvim ${1:+-k "$1"}
