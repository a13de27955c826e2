#!/usr/bin/env bash
# The pages' commands and the bad-input commands, as a user would type them, in a fresh clone of HEAD. Meanwhile all that
# the editors' tests need is installed, and the VS Code extension is built and tested. Then the page in a real browser,
# clients of other projects, Neovim and VS Code run against a real daemon, from this checkout.
set -euo pipefail
cd "$(dirname "$0")/../.."
pages=(README.md docs/models.md docs/settings.md docs/troubleshooting.md)
[ -f tests/e2e/bad_input.md ] && pages+=(tests/e2e/bad_input.md)
log=.out/e2e/install.log
mkdir -p "${log%/*}"
prepare() {
  tests/e2e/install.sh page clients nvim vscode && tests/e2e/extension.sh
}
prepare >"$log" 2>&1 &
preparing=$!
trap 'kill "$preparing" 2>/dev/null || true' EXIT
"${PYTHON:-python3}" -m tools.readme_commands "${pages[@]}"
wait "$preparing" || { cat "$log" >&2; exit 1; }
cat "$log"
trap - EXIT
export CODESPEC_MODEL=starter  # the same pair on every machine; the pages above are run as a user has it
export OMP_NUM_THREADS=1  # browser, editor and daemon share a test machine's cores: waiting threads would spin
tests/e2e/page.sh
tests/e2e/clients.sh
tests/e2e/nvim.sh
VSIX=editors/vscode/codespec.vsix tests/e2e/vscode.sh
