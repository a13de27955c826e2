#!/usr/bin/env bash
# Clients of other projects, from npm, against a real daemon.
set -euo pipefail
cd "$(dirname "$0")/../.."
tests/e2e/install.sh clients
CODESPEC_MODEL=starter node tests/e2e/clients/tabby.mjs
