#!/usr/bin/env bash
# install.sh SUITE PREFIX: the Neovim of a newer Debian (forky: 0.12, trixie: 0.10) with the libc it needs, in a folder of
# its own. The machine's apt configuration is only read, nothing outside PREFIX (an absolute path) is changed. patchelf,
# not LD_LIBRARY_PATH: what Neovim starts must not find that libc.
set -euo pipefail
suite=$1 prefix=$2
[ -x "$prefix/bin/nvim" ] && exit
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$prefix/bin"
sources=/etc/apt/sources.list.d/debian.sources
[ -f "$sources" ] || { echo "nvim: $sources is needed to install Neovim: run this on Debian 12 or newer." >&2; exit 1; }
# Its first entry, with another suite.
awk -v suite="$suite" '/^#/ {next} NF == 0 {if (seen) exit; next} /^Suites:/ {$0 = "Suites: " suite; seen = 1} {print}' \
  "$sources" >"$work/x.sources"
: >"$work/status"
options=(-o Dir::Etc::sourcelist="$work/x.sources" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferences=/dev/null
  -o Dir::Etc::preferencesparts=/dev/null -o Dir::State::lists="$work/lists" -o Dir::State::status="$work/status"
  -o Dir::Cache="$work/cache" -o APT::Install-Recommends=false -o APT::Sandbox::User=root -o Acquire::Languages=none)
apt-get "${options[@]}" update -qq
apt-get "${options[@]}" -y -qq --download-only install neovim
for package in "$work"/cache/archives/*.deb; do dpkg-deb -x "$package" "$prefix"; done
loader=$(find "$prefix" -name 'ld-linux*.so.*' -type f | head -1)
search=$(find "$prefix" -name 'lib*.so*' -printf '%h\n' | sort -u | paste -sd :)
patchelf --set-interpreter "$loader" --force-rpath --set-rpath "$search" "$prefix/usr/bin/nvim"
printf '#!/bin/sh\nexport VIM="%s" VIMRUNTIME="%s"\nexec "%s" "$@"\n' \
  "$prefix/usr/share/nvim" "$prefix/usr/share/nvim/runtime" "$prefix/usr/bin/nvim" >"$prefix/bin/nvim"
chmod +x "$prefix/bin/nvim"
