#!/usr/bin/env bash
# install.sh VERSION DIR [NODE_PREFIX]: code-server, which is a real VS Code in a browser, from npm and nothing else.
# 4.100.3 runs on node 20; later ones need NODE_PREFIX, a folder with bin/node and include/node of node 24. What is
# there already is kept.
set -euo pipefail
version=$1 dir=$2 node=${3:-}
[ "$(cat "$dir/.installed" 2>/dev/null)" = "$version" ] && exit
rm -rf "$dir" && mkdir -p "$dir" && cd "$dir"

export npm_config_nodedir=${node:-/usr} npm_config_audit=false npm_config_fund=false npm_config_loglevel=error
[ -z "$node" ] || export PATH=$node/bin:$PATH
echo '{"private":true}' >package.json
npm install --ignore-scripts "code-server@$version" # its own scripts want Kerberos' headers and downloads
(
  cd node_modules/code-server/lib/vscode
  npm install --ignore-scripts --omit=dev # pinned by the package's own shrinkwrap
  if [ -d node_modules/native-watchdog ]; then # up to 4.100: ripgrep is the system's
    ln -sfn node_modules node_modules.asar
    npm rebuild @vscode/spdlog native-watchdog
    mkdir -p node_modules/@vscode/ripgrep/bin
    ln -sf "$(command -v rg)" node_modules/@vscode/ripgrep/bin/rg
  else
    npm rebuild @vscode/spdlog @vscode/native-watchdog
  fi
)
npm rebuild argon2
echo "$version" >.installed
