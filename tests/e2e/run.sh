#!/usr/bin/env bash
# The pages' commands and the bad-input commands, as a user would type them, in a fresh clone of HEAD; then the page
# in a real browser, clients of other projects, Neovim and VS Code against a real daemon, from this checkout.
set -euo pipefail
cd "$(dirname "$0")/../.."
pages=(README.md docs/models.md docs/settings.md docs/troubleshooting.md)
[ -f tests/e2e/bad_input.md ] && pages+=(tests/e2e/bad_input.md)
"${PYTHON:-python3}" -m tools.readme_commands "${pages[@]}"
export CODESPEC_MODEL=starter  # the same pair on every machine; the pages above are run as a user has it
export OMP_NUM_THREADS=1  # browser, editor and daemon share a test machine's cores: waiting threads would spin
tests/e2e/page.sh
tests/e2e/clients.sh
tests/e2e/nvim.sh
tests/e2e/vscode.sh
