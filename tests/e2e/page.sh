#!/usr/bin/env bash
# The page at / as it is built and as a browser shows it: the committed files are rebuilt and compared byte for byte,
# the script's own tests run, and Chromium drives a real daemon. Screenshots lie in .out/e2e/page.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=.out/e2e/page
python=${PYTHON:-python3}

need() { # need COMMAND DEBIAN-PACKAGE
  command -v "$1" >/dev/null && return
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2" >/dev/null
  command -v "$1" >/dev/null || { echo "page: '$1' is needed to test the page: install it (Debian: $2)." >&2; exit 1; }
}
need node nodejs
need npm npm
need chromium chromium
[ -x .venv/bin/codespec ] || "$python" -m tools.make_venv

rm -rf "$out" && mkdir -p "$out"
(
  cd web
  npm ci --no-audit --no-fund --loglevel=error
  npm run --silent check
  npm test --silent
  node build.mjs --out "../$out/built"
)
diff -r "$out/built" codespec/server/page ||
  { echo "page: the committed page is not what web/ builds: run 'npm run build' in web/ and commit it." >&2; exit 1; }
echo "page: rebuilt, byte for byte the same"
CODESPEC_MODEL=starter node tests/e2e/page.mjs "$out"
