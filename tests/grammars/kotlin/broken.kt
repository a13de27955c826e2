import java.
//          ^ import
class Half(val one: Int, 
//                       ^ signature
class Other {
//           ^ block_start indent=4 open={
    fun area(scale: Double, 
//                          ^ signature
    fun size(): Int {
//                   ^ block_start
        val total = one +
//                       ^ operator
        call(total, 
//                  ^ arguments
        total.
//            ^ identifier
        return
//            ^ identifier
        }}}
//         ^ closing
        // a remark {
//                   ^ comment
        val text = "open
//                      ^ string
