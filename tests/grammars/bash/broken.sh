source 
#      ^ import

open() {
#       ^ block_start
  echo "closed" 
#               ^ arguments indent=2 open={
  x=
#   ^ operator
  if [ "$x" = 
#             ^ operator

next() {
  local files=$(ls 
#                  ^ arguments indent=4 open={{(
  for i in 1 2; do
#                 ^ block_start
    ls | 
#        ^ operator
    # comment in broken code
#                ^ comment indent=4 open={{(
    while true; do
#                 ^ block_start
      case $x in
        a) run 
#              ^ arguments
    git add fi
#             ^ identifier indent=4 open={{
    make && 
#           ^ operator
    (cd bu
#         ^ identifier
    sort < 
#          ^ operator indent=4 open={{(
    cat <<END
here document
#    ^ string
