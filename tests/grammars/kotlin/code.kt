package shapes.base
//             ^ import

import java.util.List
//               ^ import

/** Adds two numbers. */
//           ^ docstring indent=0
class Shape(val first: Int, val second: Int) : Base() {
//                          ^ signature
//                                             ^ signature
//                                                     ^ block_start indent=4 open={
    private val sides = 4
//0 ^ indent
//                      ^ operator

    // a plain remark
//             ^ comment indent=4 open={
    fun area(scale: Double, depth: Int): Double {
//                          ^ signature
//                                       ^ signature
//                                               ^ block_start indent=8 open={{
        val total = scale * sides
//                          ^ operator
        if (total > 10 && scale == 1) {
//                  ^ operator
//                                 ^ operator indent=12 open={{(
//                                     ^ block_start
            return Math.max(total, other)
//                      ^ identifier
//                          ^ arguments indent=16 open={{{(
//                                       ^ closing
        }
//       ^ closing
        /* block comment */
//               ^ comment indent=8 open={{
        println("sum ${total} done")
//                       ^ identifier
//                            ^ string
        for (side in sides) {
//                   ^ operator whole indent=12 open={{(
//                           ^ block_start
            side.draw(1)
//                    ^ arguments
//                      ^ closing indent=12 open={{{
        }
        return when (total) {
//                           ^ block_start
            1 -> 2
//               ^ operator
            else -> 3
        }
    }
}
