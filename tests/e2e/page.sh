#!/usr/bin/env bash
# The page at / as it is built and as a browser shows it: the committed files are rebuilt and compared byte for byte,
# the script's own tests run, and Chromium drives a real daemon. Screenshots lie in .out/e2e/page.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=.out/e2e/page
tests/e2e/install.sh page
rm -rf "$out" && mkdir -p "$out"
(
  cd web
  npm run --silent check
  npm test --silent
  node build.mjs --out "../$out/built"
)
diff -r "$out/built" codespec/server/page ||
  { echo "page: the committed page is not what web/ builds: run 'npm run build' in web/ and commit it." >&2; exit 1; }
echo "page: rebuilt, byte for byte the same"
CODESPEC_MODEL=starter node tests/e2e/page.mjs "$out"
