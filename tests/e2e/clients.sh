#!/usr/bin/env bash
# Clients of other projects, from npm, against a real daemon.
set -euo pipefail
cd "$(dirname "$0")/../.."
for command in node npm; do
  command -v "$command" >/dev/null ||
    { echo "clients: '$command' is needed to try clients from npm: install Node.js 20." >&2; exit 1; }
done
[ -x .venv/bin/codespec ] || "${PYTHON:-python3}" -m tools.make_venv
(cd tests/e2e/clients && npm ci --no-audit --no-fund --loglevel=error)
CODESPEC_MODEL=starter node tests/e2e/clients/tabby.mjs
