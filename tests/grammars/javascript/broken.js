import { one, 
//            ^ import
function open(first, 
//                   ^ signature

function next(b) {
//                ^ block_start indent=2 open={
  const x = foo(a, 
//                 ^ arguments
  const y = bar(1, 2)
//                   ^ closing
  const s = 'unclosed string
//                    ^ string indent=2 open={
  const t = s.
//            ^ identifier
  if (x ==
//        ^ operator
  return t + 
//           ^ operator indent=2 open={
}

class Broken extends 
//                   ^ signature
class Other {
  method(first, 
//              ^ signature
  }
  next() {
    const list = [1, 2, call(
//                           ^ arguments indent=6 open={[(
    // comment in broken code
//                ^ comment
    const o = { a: 
//                 ^ operator
    this.value = 
//               ^ operator indent=4 open={
    while (true) {
//                ^ block_start
      const text = `one ${two
//                           ^ identifier
