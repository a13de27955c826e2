import { one, 
//            ^ import
export function open(first: number, 
//                                  ^ signature

function next(b: string): void {
//                              ^ block_start indent=2 open={
  const x: number = foo(a, 
//                         ^ arguments
  const y = bar(1, 2)
//                   ^ closing
  const s = "unclosed string
//                    ^ string indent=2 open={
  const t = s.
//            ^ identifier
  return t + 
//           ^ operator
}

interface Half extends 
//                     ^ signature indent=0
class Other {
  method(first: string, 
//                      ^ signature
  }
  next(): void {
    const list = [1, 2, call(
//                           ^ arguments
    // comment in broken code
//                ^ comment indent=4 open={[(
    const o = { a: 
//                 ^ operator
    this.value = 
//               ^ operator
    if (this.value) {
//                   ^ block_start indent=6 open={{
      const text = `one ${two
//                           ^ identifier
      other(text, one.
//                    ^ identifier
