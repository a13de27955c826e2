use std::io::
//           ^ import
pub fn open(first: u8, 
//                     ^ signature

fn next(b: u8) {
//              ^ block_start indent=4 open={
    let x = foo(a, 
//                 ^ arguments
    let y = bar(1, 2)
//                   ^ closing
    let t = s.
//            ^ identifier indent=4 open={
    if x ==
//         ^ operator
    return t + 
//             ^ operator
}

impl Shape for 
//             ^ signature indent=0
struct Other {
//            ^ block_start
    name: String,
}

impl Other {
    fn method(&self, 
//                   ^ signature
    }
    fn next(&self) {
//                  ^ block_start indent=8 open={
        let list = [1, 2, call(
//                             ^ arguments
        // comment in broken code
//                    ^ comment
        let r = Range::
//                     ^ identifier indent=8 open={
        let value = 
//                  ^ operator
        while value > 1 {
//                       ^ block_start
            let text = "unclosed 
//                               ^ string indent=12 open={{
