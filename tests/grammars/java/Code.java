package shapes.base;
//             ^ import

import java.util.List;
//               ^ import
import static java.lang.Math.max;
//                           ^ import indent=0

/** Adds two numbers. */
//           ^ docstring
public class Shape<T> extends Base implements Area {
//                            ^ signature
//                                                  ^ block_start indent=4 open={
    private final int sides = 4;
//0 ^ indent
//                            ^ operator
    private String name;
//                   ^ identifier indent=4 open={

    // a plain remark
//             ^ comment
    public Shape(int sides, String name) {
//                          ^ signature
//                                        ^ block_start indent=8 open={{
        super(sides);
//            ^ arguments
        this.name = name;
//           ^ identifier
//                  ^ operator indent=8 open={{
    }

    @Override
    public double area(double scale) throws Problem {
//                              ^ signature
//                                          ^ signature
//                                                   ^ block_start indent=8 open={{
        double total = scale * sides;
//                             ^ operator
        if (total > 10 && scale == 1) {
//                  ^ operator
//                                 ^ operator indent=12 open={{(
//                                     ^ block_start
            return Math.max(total, other);
//                      ^ identifier
//                          ^ arguments indent=16 open={{{(
//                                       ^ closing
        }
//       ^ closing
        /* block comment */
//               ^ comment indent=8 open={{
        System.out.println("sum " + total);
//                              ^ string
//                                  ^ operator
        for (Side side : this.sides) {
//                       ^ operator indent=12 open={{(
//                                    ^ block_start
            side.draw(
                side.x,
//0 ^ indent
                side.y
//                   ^ identifier indent=16 open={{{(
            );
//0 ^ indent
//           ^ closing
        }
        int[] table = {1, 2};
//                        ^ statement indent=12 open={{{
        int one = table[0];
//                      ^ statement
//                        ^ closing
        switch (one) {
//                    ^ block_start indent=12 open={{{
            case 1:
//                 ^ block_start
                break;
//                   ^ identifier
        }
        char letter = 'x';
//                     ^ string indent=8 open={{
        run(() -> {
//                 ^ block_start
            call(new Thing(1, 2));
//                            ^ arguments
//                               ^ closing indent=12 open={{({
        });
        items.forEach(item -> item.close());
//                            ^ operator
        String text = """
            a text block
//                 ^ string
            """;
        try {
//           ^ block_start indent=12 open={{{
            throw new Problem("bad");
//                               ^ string
        } finally {
//                 ^ block_start
            close();
//                ^ arguments indent=16 open={{{(
        }
        return one > 1 ? one : 2;
//            ^ identifier
//                       ^ operator
//                             ^ operator indent=8 open={{
    }
}

interface Area {
//              ^ block_start
    double area(double scale);
//                     ^ signature
}

enum Color {
//          ^ block_start indent=4 open={
    RED(1),
//        ^ closing
}
