using System.
//           ^ import
public class Half : 
//                  ^ signature
    private int one =
//                   ^ operator
    public int Area(int first, 
//                             ^ signature
    public int Size() {
//                     ^ block_start
        var total = first *
//                         ^ operator
        Call(total, 
//                  ^ arguments
        this.
//           ^ identifier
        return
//            ^ identifier
        }}}
//         ^ closing
        // a remark {
//                   ^ comment
        var text = "open
//                      ^ string
