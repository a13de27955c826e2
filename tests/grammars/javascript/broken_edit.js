import {
//      ^ import open={
const first = require("one
//                        ^ string indent=2 open=(
export default function (
//                       ^ signature open=(
class Shape {
  constructor(name, 
//                  ^ signature indent=4 open={(
  get size() { return this.
//                         ^ identifier
  static {
//        ^ block_start
    items.map((item) => {
//                       ^ block_start
      if (item &&
//               ^ operator
      item?.
//          ^ identifier
      return <
//            ^ operator
    }}}
}}
//2 ^ closing
const table = { key: [1, 
//                       ^ statement open={[
const other = { ...
//                 ^ operator open={
async function last(a, b) {
//                         ^ block_start indent=2
  await call(a, `x ${b} y
//                       ^ string
