using System.Text;
//           ^ import

namespace Shapes {
//                ^ block_start

/// Adds two numbers.
//           ^ docstring indent=0 open={
public class Shape : Base {
//                   ^ signature
//                         ^ block_start
    private int sides = 4;
//0 ^ indent indent=4 open={{
//                      ^ operator
    // a plain remark
//             ^ comment
    public Shape(int sides, string name) {
//                          ^ signature indent=8 open={{(
//                                        ^ block_start
        this.sides = sides;
//           ^ identifier
//                   ^ operator indent=8 open={{{
    }

    public double Area(double scale) {
//                              ^ signature
//                                    ^ block_start
        var total = scale * sides;
//                          ^ operator indent=8 open={{{
        if (total > 10 && scale == 1) {
//                  ^ operator
//                                 ^ operator
//                                     ^ block_start indent=12 open={{{{
            return Math.Max(total, other);
//                      ^ identifier
//                          ^ arguments
//                                       ^ closing indent=12 open={{{{
        }
//       ^ closing
        /* block comment */
//               ^ comment
        Console.WriteLine($"sum {total} done", total);
//                                 ^ identifier indent=12 open={{{({
//                                      ^ string
//                                             ^ arguments
        foreach (var side in this.sides) {
//                                        ^ block_start indent=12 open={{{{
            side.Draw(1);
//                    ^ arguments
        }
        var text = @"raw \ text";
//                         ^ string
        return total;
//            ^ identifier indent=8 open={{{
    }

    public int Count { get; set; }
//                                ^ closing
}

interface Area {
//              ^ block_start
    double Size(double scale);
//                     ^ signature indent=8 open={{(
}
}
