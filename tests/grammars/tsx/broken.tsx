import { one, 
//            ^ import
export function Open({ first, 
//                            ^ signature

function Next(props: Props) {
//                           ^ block_start indent=2 open={
  const x = foo(a, 
//                 ^ arguments
  const y = bar(1, 2)
//                   ^ closing
  const s = "unclosed string
//                    ^ string indent=2 open={
  const t = s.
//            ^ identifier
  // comment in broken code
//              ^ comment
  return t + 
//           ^ operator indent=2 open={
}

class Other extends 
//                  ^ signature
class Panel {
  method(first: string, 
//                      ^ signature
  }
  next(): void {
    const list = [1, 2, call(
//                           ^ arguments indent=6 open={[(
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
