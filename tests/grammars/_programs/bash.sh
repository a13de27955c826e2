#!/usr/bin/env bash
# Makes a release: checks, builds, signs, uploads.
set -euo pipefail
shopt -s nullglob

readonly ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly VERSION_FILE="$ROOT/VERSION"
TARGETS=(linux-x86_64 linux-aarch64 darwin-arm64)
declare -A SUFFIX=([linux-x86_64]=tar.gz [darwin-arm64]=zip)
dry_run=0
jobs=${JOBS:-2}

log() {
  local level=$1
  shift
  printf '%s [%s] %s\n' "$(date +%H:%M:%S)" "$level" "$*" >&2
}

die() {
  log error "$@"
  exit 1
}

usage() {
  cat <<EOF
usage: ${0##*/} [-n] [-j JOBS] [TARGET...]

  -n   say what would be done, do nothing
  -j   how many targets at once (now $jobs)
EOF
}

run() {
  if [[ $dry_run -eq 1 ]]; then
    log dry "$@"
    return 0
  fi
  "$@"
}

check_tools() {
  local tool missing=()
  for tool in git tar gpg curl; do
    command -v "$tool" >/dev/null 2>&1 || missing+=("$tool")
  done
  if ((${#missing[@]} > 0)); then
    die "these tools are missing: ${missing[*]}"
  fi
}

next_version() {
  local major minor patch
  IFS=. read -r major minor patch <"$VERSION_FILE"
  case "${1:-patch}" in
    major)
      echo "$((major + 1)).0.0"
      ;;
    minor) echo "$major.$((minor + 1)).0" ;;
    patch | "")
      echo "$major.$minor.$((patch + 1))"
      ;;
    *) die "no such part of a version: $1" ;;
  esac
}

build() {
  local target=$1 version=$2
  local out="$ROOT/dist/$target"
  mkdir -p "$out"
  log info "building $target $version"
  run make -C "$ROOT" TARGET="$target" VERSION="$version" install DESTDIR="$out" || return 1
  while IFS= read -r -d '' file; do
    if file "$file" | grep -q 'not stripped'; then
      run strip "$file"
    fi
  done < <(find "$out" -type f -perm -u+x -print0)
  (
    cd "$ROOT/dist"
    if [ "${SUFFIX[$target]:-tar.gz}" = zip ]; then
      run zip -qr "$target-$version.zip" "$target"
    else
      run tar -czf "$target-$version.tar.gz" --owner=0 --group=0 "$target"
    fi
  )
}

upload() {
  local version=$1 file status
  for file in "$ROOT"/dist/*-"$version".*; do
    run gpg --batch --armor --detach-sign "$file"
    until status=$(run curl -fsS -o /dev/null -w '%{http_code}' -T "$file" "https://example.org/$version/"); do
      log warn "upload of $(basename "$file") failed, again in 5 s"
      sleep 5
    done
    log info "$file: ${status:-skipped}"
  done
}

main() {
  local option part=patch
  while getopts ':nj:p:h' option; do
    case $option in
      n) dry_run=1 ;;
      j) jobs=$OPTARG ;;
      p) part=$OPTARG ;;
      h)
        usage
        exit 0
        ;;
      \?) usage >&2 && die "unknown option -$OPTARG" ;;
    esac
  done
  shift $((OPTIND - 1))
  [[ $# -gt 0 ]] && TARGETS=("$@")

  check_tools
  local version
  version=$(next_version "$part")
  git -C "$ROOT" diff --quiet || die "there are changes that are not committed"
  export -f build log run
  printf '%s\n' "${TARGETS[@]}" | xargs -P "$jobs" -I{} bash -c "build {} $version"
  upload "$version"
  echo "$version" >"$VERSION_FILE"
  trap - EXIT
}

trap 'log warn "stopped at line $LINENO"' EXIT
main "$@"
