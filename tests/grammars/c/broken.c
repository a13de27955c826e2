#include <
//        ^ import
int open(int first, 
//                  ^ signature

int next(int b) {
//               ^ block_start indent=4 open={
    int x = foo(a, 
//                 ^ arguments
    int y = bar(1, 2)
//                   ^ closing
    char *s = "unclosed string
//                      ^ string indent=4 open={
    t = s.
//        ^ identifier
    if (x ==
//          ^ operator
    return t + 
//             ^ operator indent=4 open={
}

struct other {
//            ^ block_start
    char *name;
    int (*call)(int a, 
//                     ^ signature
};

static void last(struct other *o) {
//                                 ^ block_start indent=4 open={
    int list = first(1, call(
//                           ^ arguments
    // comment in broken code
//                ^ comment
    o->
//     ^ identifier indent=4 open={
    int value = 
//              ^ operator
    while (value > 1) {
//                     ^ block_start
        printf("unclosed 
//                       ^ string indent=12 open={{(
        o->name = table[
//                      ^ statement
