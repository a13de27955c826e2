import java.util.
//               ^ import
public class Broken extends 
//                          ^ signature
class Other {
    int open(int first, 
//                      ^ signature indent=8 open={(

    int next(int b) {
//                   ^ block_start
        int x = foo(a, 
//                     ^ arguments
        int y = bar(1, 2)
//                       ^ closing indent=8 open={{
        String s = "unclosed string
//                           ^ string
        var t = s.
//                ^ identifier
        if (x ==
//              ^ operator indent=12 open={{(
        return t + 
//                 ^ operator
    }

    void method(int first, 
//                         ^ signature
    }

    void last() {
//               ^ block_start indent=8 open={
        var list = first(1, call(
//                               ^ arguments
        // comment in broken code
//                    ^ comment
        this.
//           ^ identifier indent=8 open={
        int value = 
//                  ^ operator
        while (value > 1) {
//                         ^ block_start
            print("unclosed 
//                          ^ string indent=16 open={{(
            name = table[
//                       ^ statement
