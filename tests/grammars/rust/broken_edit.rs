use std::{io, 
//            ^ import open={
pub fn first<T: Clone, 
//                     ^ signature
impl Shape {
//          ^ block_start indent=4 open={
    fn area(&self, scale: 
//                        ^ signature
    pub fn size(&self) -> usize {
//                               ^ block_start
        let total = self.items.
//                             ^ identifier
        let other = call(total, 
//                              ^ arguments
        match other {
//                   ^ block_start
            Some(x) =>
//                    ^ operator
            None => return
//                        ^ identifier
        if let Some(y) =
//                      ^ operator
        let text = format!("one {}", 
//                                   ^ arguments
        let z = &mut
//                  ^ identifier
        for i in 0..
//                  ^ operator
    }}}
}}
//2 ^ closing
#[derive(
//       ^ arguments
struct Pair(u8, 
//              ^ signature
/* never closed
let x = call(
//           ^ comment
