<?php
use Base\
//       ^ import
class Half extends 
//                 ^ signature
    private $one =
//                ^ operator
    function area(int $first, 
//                            ^ signature
    function size() {
//                   ^ block_start
        $this->
//             ^ identifier
        call($one, 
//                 ^ arguments
        if ($one &&
//                 ^ operator
        return
//            ^ identifier
        }}}
//         ^ closing
        // a remark {
//                   ^ comment
        $text = "open
//                   ^ string
