#include <stdio.h
//               ^ import
#if DEBUG
void log_it(const char *text, 
//                            ^ signature indent=4 open=(
#else
}}
#endif
int main(void) {
    int total = 3
//               ^ identifier indent=4 open={
    total +=
//          ^ operator
    if (total > 2 {
//                 ^ block_start indent=8
        printf("a", 
//                  ^ arguments indent=12
    }
    s->name = "open string;
    s->next = 0;
//         ^ identifier
    /* a comment that ends
//                        ^ comment
       here */
    return
//        ^ identifier indent=4
    else {
//        ^ block_start indent=8
        call(a)(b)
//                ^ closing
        x = a ? b :
//                 ^ operator
        x = table[i][
//                   ^ statement indent=12
        x = !
//           ^ operator
        // done
        /* never closed
        x = call(
//               ^ comment
