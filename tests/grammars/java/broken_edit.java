package shapes.
//             ^ import
import java.util.List
public class Shape extends 
//                         ^ signature
    private int sides;
//                   ^ identifier
    public Shape(int sides, 
//                          ^ signature
    int area(int one) {
//                     ^ block_start
        int total = one *
//                       ^ operator
        if (total > {
//                   ^ block_start
            call(total, other(
//                            ^ arguments
        for (int i = 0; i < 3; i++)
//                                 ^ closing
        String name = "one" +
//                           ^ operator
        this.name = name.
//                       ^ identifier
        }}}}
//          ^ closing
    @Override
    public String toString(
//                         ^ signature
        return
//            ^ identifier
        switch (x) {
            case 1:
        /** never closed
        int x = call(
//                   ^ docstring
