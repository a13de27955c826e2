import type {
//           ^ import open={
export type Names = Record<string, 
//                                 ^ statement
interface Half {
//              ^ block_start indent=2 open={
  name: string
  scale?:
//       ^ statement
class Shape<T extends 
//                    ^ signature
  private items: T[] =
//                    ^ operator
  constructor(private name: string, 
//                                  ^ signature
  area(): number {
//                ^ block_start
    const total = this.items.
//                           ^ identifier
    return call<T>(total, 
//                        ^ arguments
    if (total > 1) {
//                  ^ block_start
      throw new Error("bad
//                        ^ string
      items.forEach((item: T) =>
//                              ^ operator
    }}}}
}}
//2 ^ closing
enum Color { Red =
//                ^ operator
function last(a: number, b?: string
//                          ^ signature
const x = y as
//            ^ identifier
/* never closed
const z = call(
//             ^ comment
