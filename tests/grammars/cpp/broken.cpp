#include "
//        ^ import
int open(int first, 
//                  ^ signature

int next(int b) {
//               ^ block_start indent=4 open={
    auto x = foo(a, 
//                  ^ arguments
    auto y = bar(1, 2)
//                    ^ closing
    auto s = "unclosed string
//                     ^ string indent=4 open={
    t = s.
//        ^ identifier
    if (x ==
//          ^ operator
    return t + 
//             ^ operator indent=4 open={
}

class Other : public 
//                   ^ signature
class Third {
//           ^ block_start
    void method(int first, 
//                         ^ signature indent=8 open={(
};

static void last(Other &o) {
//                          ^ block_start
    auto list = first(1, call(
//                            ^ arguments
    // comment in broken code
//                ^ comment indent=4 open={((
    o.
//    ^ identifier
    auto value = std::
//                    ^ identifier
    while (value > 1) {
//                     ^ block_start indent=8 open={{
        std::cout << "unclosed 
//                             ^ string
        o.name = table[
//                     ^ statement
