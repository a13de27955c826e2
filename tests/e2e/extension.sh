#!/usr/bin/env bash
# extension.sh [build]: the VS Code extension as it is built and packed from here: its contents, and, without `build`,
# its own tests with a real installation of the server that it carries. The last step's log is .out/e2e/extension/log.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=.out/e2e/extension
tests/e2e/install.sh extension
rm -rf "$out" && mkdir -p "$out"

step() { # step NAME COMMAND...
  local start=$SECONDS
  "${@:2}" >"$out/log" 2>&1 || { cat "$out/log" >&2; echo "extension: $1 failed." >&2; exit 1; }
  echo "extension: $1 ($((SECONDS - start)) s)"
}
build() (
  cd editors/vscode && npm run --silent package
)
try() ( # with what it carries, installed for real
  cd editors/vscode && CODESPEC_CARRIED=$PWD/server npm test --silent
)
step "it is built and packed" build
step "it holds nothing that must not go out" .venv/bin/python -m tools.check_vsix editors/vscode/codespec.vsix
[ "${1:-}" = build ] || step "its own tests pass, and what it carries installs" try
