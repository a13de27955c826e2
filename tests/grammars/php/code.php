<?php
namespace Shapes;
//              ^ import
use Base\Other;
//       ^ import

/** Adds two numbers. */
//           ^ docstring indent=0
class Shape extends Base {
//                  ^ signature
//                        ^ block_start
    private $sides = 4;
//0 ^ indent indent=4 open={
//                   ^ operator
    // a plain remark
//             ^ comment
    public function area(int $first, $second = 1): int {
//                                   ^ signature indent=8 open={(
//                                                      ^ block_start
        $total = $first + $second;
//                        ^ operator
        if ($total > 10 && $first) {
//                   ^ operator indent=12 open={{(
//                                  ^ block_start
            return max($total, 2);
//                     ^ arguments
//                               ^ closing indent=12 open={{{
        }
//       ^ closing
        /* block comment */
//               ^ comment
        echo "sum text", 'single quoted';
//                ^ string indent=8 open={{
//                               ^ string
        $this->draw(1);
//             ^ identifier
//                  ^ arguments indent=12 open={{(
//                    ^ closing
        $table = ["key" => 1, "other" => 2];
//                         ^ operator
//                                         ^ closing indent=8 open={{
        foreach ($table as $item) {
//                                 ^ block_start
            Shape::make($item);
//                 ^ identifier
        }
        return $table["key"];
//                       ^ string indent=12 open={{[
    }
}

function half(int $a, $b) {
//                    ^ signature
//                         ^ block_start
    return $a;
//        ^ identifier indent=4 open={
}
