if [ -f "$1" ]; then
#                   ^ block_start indent=2
  echo "unclosed $(ls
#                    ^ identifier open=(
)"
fi
done
#   ^ identifier
for name in
#          ^ identifier
  cp "$name" two
total=$((1 +
#           ^ operator
))
export PATH=
#           ^ operator
}}
# ^ closing
first() {
#        ^ block_start indent=2 open={
  local x=${name:-
#                 ^ identifier
  }
  git commit -m 'never 
#                      ^ string
