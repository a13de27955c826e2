import type { User, Role } from "./types";
//                  ^ import
//                                   ^ import
import fs from "fs";
//             ^ import indent=0

/** The shape of things. */
//         ^ docstring
export interface Shape extends Base {
//                             ^ signature
//                                   ^ block_start indent=2 open={
  name: string;
//0 ^ indent
  area(scale: number, deep?: boolean): number;
//                    ^ signature
//                                        ^ signature indent=2 open={
}

type Pair = { left: string };
//                  ^ statement
enum Color {
//          ^ block_start
  Red = 1,
//      ^ operator indent=2 open={
}

// remark on generics
//           ^ comment
export function pick<T>(items: T[], at: number): T | undefined {
//                                      ^ signature
//                                                   ^ signature indent=0
//                                                              ^ block_start
  const found: T = items[at];
//                       ^ statement
  if (found === undefined && at > 2) {
//              ^ operator indent=4 open={(
//                               ^ operator
//                                    ^ block_start
    throw new RangeError(`bad index ${at} of list`);
//                                      ^ identifier indent=6 open={{({
//                                           ^ string
  }
// ^ closing
  return found as T;
//                ^ statement indent=2 open={
}

abstract class Store<K> implements Shape {
//                                 ^ signature
//                                        ^ block_start
  private items: Map<K, Shape> = new Map();
//                               ^ operator indent=2 open={
  constructor(private readonly name: string, size = 1) {
//                                           ^ signature
//                                                      ^ block_start
    super(size);
//        ^ arguments indent=6 open={{(
    this.size = size;
//       ^ identifier
//                  ^ identifier
  }
  get total(): number {
//             ^ signature indent=2 open={
    return this.items.values().reduce((sum, item) => sum + item.area(1), 0);
//                                          ^ signature whole
//                                                   ^ operator
//                                                              ^ identifier indent=6 open={{(
//                                                                       ^ arguments
//                                                                         ^ closing
  }
  abstract save(target: string): void;
//                      ^ signature indent=4 open={(
  async load(path: string): Promise<void> {
    const text = await fs.read(path, { encoding: "utf8" });
//                                               ^ operator
//                                                  ^ string
    for (const line of text.split("\n")) {
//                                     ^ closing indent=6 open={{(
//                                        ^ block_start
      this.add(
        line.trim(),
//0 ^ indent
//                ^ arguments indent=10 open={{{((
        line?.length,
//            ^ identifier
      );
//0 ^ indent
//     ^ closing indent=6 open={{{
    }
    /* a block comment */
//             ^ comment
    const pick = text ? 1 : 2;
//                      ^ operator
//                          ^ operator indent=4 open={{
  }
}
