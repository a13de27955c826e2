#!/usr/bin/env bash
# The README's commands and the bad-input commands, as a user would type them, in a fresh clone of HEAD.
set -euo pipefail
cd "$(dirname "$0")/../.."
pages=(README.md)
[ -f tests/e2e/bad_input.md ] && pages+=(tests/e2e/bad_input.md)
exec "${PYTHON:-python3}" -m tools.readme_commands "${pages[@]}"
