import React, { useState } from "react";
//                 ^ import
//                                 ^ import
import * as path from "path";
//                    ^ import indent=0

/**
 * Adds two numbers.
//          ^ docstring
 */
export function add(first, second = 1) {
//                            ^ signature
//                                      ^ block_start indent=2 open={
  // a plain remark
//0 ^ indent
//           ^ comment
  const total = first + second;
//                      ^ operator indent=2 open={
  if (total > 10 && first) {
//            ^ operator
//                          ^ block_start
    return Math.max(total, 3);
//                  ^ arguments indent=6 open={{(
//                          ^ identifier
//                           ^ closing
  }
// ^ closing indent=2 open={
  /* block comment */
//         ^ comment
  return `sum: ${total} of all`;
//                 ^ identifier
//                         ^ string indent=2 open={
}

class Shape extends Base {
//                  ^ signature
//                        ^ block_start
  constructor(name, options = {}) {
//                  ^ signature indent=4 open={(
//                                 ^ block_start
    super(name);
//        ^ arguments
    this.name = name;
//       ^ identifier indent=4 open={{
//              ^ operator
  }

  async area(scale) {
//           ^ signature
    const found = await this.lookup("key", { deep: true });
//                                     ^ string indent=6 open={{(
//                                                 ^ operator
    for (const item of this.items) {
//                     ^ statement
//                                  ^ block_start indent=6 open={{{
      item.draw(
        item.x,
//0 ^ indent
        item.y,
//           ^ identifier
      );
//0 ^ indent indent=8 open={{{(
//     ^ closing
    }
    switch (found) {
//                  ^ block_start
      case 1:
//           ^ block_start indent=8 open={{{
        return null;
//            ^ identifier
    }
    const pattern = /it's [a-z]+/g;
    const other = pattern ? 1 : 2;
//                          ^ operator
//                              ^ operator indent=4 open={{
    return items.map((item) => item.name).filter(Boolean);
//                             ^ operator
//                                               ^ arguments
//                                                       ^ closing indent=4 open={{
  }
}

const table = { "key": [1, 2], other };
//                     ^ operator
//                                  ^ identifier
const view = (props) => {
//                       ^ block_start indent=2 open={
  const first = table["other"];
//                    ^ statement
  return first?.name ?? "none";
//              ^ identifier
//                      ^ operator indent=2 open={
//                           ^ string
};
export { add } from "./math";
//                       ^ import
call(function (left, right) {
//                   ^ signature indent=2 open=((
//                           ^ block_start
  return left;
//       ^ statement
}, [1, 2]);
// ^ arguments open=(
