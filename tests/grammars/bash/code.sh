#!/usr/bin/env bash
#                ^ comment
set -euo pipefail
#        ^ arguments
source ./lib.sh
#      ^ import indent=0
. "lib/other.sh"
#         ^ import

# A plain remark
#         ^ comment
LIMIT=10
#     ^ operator indent=0
NAMES=(a b c)
#        ^ statement

add() {
#      ^ block_start
  local total="$1 and $2"
#0 ^ indent indent=2 open={
#             ^ operator
#                   ^ string
  if [ "$total" -gt 10 ]; then
#                   ^ operator whole indent=2 open={
#                             ^ block_start
    echo "sum $total" more
#             ^ string
#                     ^ arguments indent=4 open={
    return 1
#          ^ arguments
  else
#     ^ block_start
    printf '%s\n' "${NAMES[0]}" 
#                               ^ arguments indent=4 open={
  fi
#   ^ identifier
  for name in a b; do
#                    ^ block_start
    draw "$name" --color=red # trailing remark
#            ^ identifier whole
#                          ^ identifier
#                                       ^ comment
  done
}

function area {
#              ^ block_start indent=2 open={
  files=$(ls -l *.txt | wc -l)
#               ^ arguments
#                       ^ operator
#                             ^ closing indent=2 open={
  while read -r line; do
#                       ^ block_start
    case "$line" in
      start) run now ;;
#                ^ arguments
      *) echo 'single quoted' ;;
#                     ^ string indent=6 open={
    esac
  done < input.txt
#        ^ operator
  cat <<EOF
text in a here document
#              ^ string
with (brackets and 'quotes'
EOF
  make build && make test || exit 1
#               ^ operator indent=2 open={
#                            ^ operator
  if [[ $line == x* ]]; then
#                ^ operator
#                           ^ block_start indent=4 open={
    git commit -m "fix: $line" --amend
#                       ^ string
#                                     ^ identifier
  fi
  (cd build && ls -a)
#              ^ operator indent=4 open={(
#                   ^ identifier
  count=$(wc -l < "name")
#                    ^ string
#                        ^ closing indent=2 open={
}
area "$@"
#      ^ identifier
