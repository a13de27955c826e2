#include <stdio.h>
//           ^ import
#include "shape.h"
//           ^ import
#define LIMIT 10
//            ^ statement indent=0
#define MAX(a, b) ((a) > (b) ? (a) : (b))
//             ^ signature

/** Adds two numbers. */
//           ^ docstring
int add(int first, int second) {
//                        ^ signature indent=4 open=(
//                              ^ block_start
    // a plain remark
//0 ^ indent
//             ^ comment indent=4 open={
    int total = first + second;
//                      ^ operator
    if (total > 10 && first) {
//              ^ operator
//                            ^ block_start indent=8 open={{
        return max(total, other);
//                 ^ arguments
//                              ^ closing
    }
//   ^ closing indent=4 open={
    /* block comment */
//           ^ comment
    printf("sum %d\n", total);
//              ^ string
//                     ^ arguments indent=8 open={(
    return total == 3 ? first : second;
//                  ^ operator
//                      ^ operator
//                              ^ operator indent=4 open={
}

struct shape {
//            ^ block_start
    char *name;
    int sides;
//        ^ identifier
};

enum color {
//          ^ block_start indent=4 open={
    RED = 1,
//        ^ operator
};

static double area(const struct shape *self, double scale) {
//                                           ^ signature
//                                                          ^ block_start indent=4 open={
    for (int i = 0; i < self->sides; i++) {
//               ^ operator
//                     ^ operator
//                            ^ identifier indent=8 open={(
//                                         ^ block_start
        draw(
            self->name,
//0 ^ indent
//                ^ identifier indent=12 open={{(
            self.y
//               ^ identifier
        );
//0 ^ indent
//       ^ closing indent=8 open={{
    }
    switch (self->sides) {
//                        ^ block_start
    case 1:
//         ^ block_start
        break;
//           ^ identifier indent=8 open={{
    }
    int table[] = {1, 2};
//                    ^ statement
    int one = table[0];
//                  ^ statement
//                    ^ closing indent=4 open={
    char letter = 'x';
//                 ^ string
    const char *text = "a \"quoted\" text";
//                                   ^ string
    while (one) {
//               ^ block_start indent=8 open={{
        one = sizeof(table);
//                   ^ statement
        free(table);
//                 ^ closing
    }
    return one;
//        ^ identifier indent=4 open={
}
int declared(int depth, char *name);
//                      ^ signature
