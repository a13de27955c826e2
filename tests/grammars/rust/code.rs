use std::collections::HashMap;
//                    ^ import
use crate::shapes::{Area, Round};
//                        ^ import

/// Adds two numbers.
//           ^ docstring indent=0
pub fn add<T: Num>(first: T, second: T) -> T {
//                              ^ signature
//                                         ^ signature
//                                            ^ block_start indent=4 open={
    // a plain remark
//0 ^ indent
//             ^ comment
    let total = first + second;
//                      ^ operator indent=4 open={
    if total > 10 && flag {
//             ^ operator
//                         ^ block_start
        return max(total, other);
//                 ^ arguments indent=12 open={{(
//                              ^ closing
    }
//   ^ closing
    /* block comment */
//           ^ comment indent=4 open={
    println!("sum {}", total);
//                ^ string
//                     ^ arguments
    total.abs()
//        ^ identifier indent=4 open={
}

#[derive(Debug)]
pub struct Shape<'a> {
//                    ^ block_start
    name: &'a str,
//            ^ statement
    sides: u8,
//          ^ identifier indent=4 open={
}

enum Color {
//          ^ block_start
    Red(u8),
}

impl<'a> Area for Shape<'a> {
//                ^ signature
//                           ^ block_start indent=4 open={
    fn area(&self, scale: f64) -> f64 {
//                        ^ signature
//                                     ^ block_start
        let found = self.lookup.get(&scale, 'x');
//                                      ^ identifier indent=12 open={{(
//                                              ^ closing
        for side in self.sides.iter() {
//                  ^ statement
//                                     ^ block_start indent=12 open={{{
            side.draw(
                self.x,
//0 ^ indent
                self.y,
//                   ^ identifier
            );
//0 ^ indent indent=16 open={{{(
//           ^ closing
        }
        match found {
//                   ^ block_start
            Some(value) => value,
//                         ^ operator indent=12 open={{{
            None => Shape::empty(0),
//                         ^ identifier
//                               ^ arguments
        }
    }
}

mod tests {
//         ^ block_start indent=4 open={
    fn works() {
        let table: Vec<u8> = vec![1, 2];
//                           ^ operator
        let shape = Shape { name: "name", sides: 4 };
//                                ^ operator
//                                   ^ string indent=12 open={{{
        let twice = |left: u8, right| left * right;
//                             ^ signature whole
//                                           ^ operator
        assert_eq!(twice(1, 2), "multi
//                          ^ arguments indent=12 open={{((
 line");
// ^ string
        let one = table[0];
//                      ^ statement
//                        ^ closing indent=8 open={{
        return one;
//            ^ identifier
    }
}

trait Draw {
    /// Draws it.
//            ^ docstring
    fn draw(&self, depth: usize);
//                        ^ signature indent=8 open={(
}
