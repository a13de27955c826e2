(array) @statement
(inline_table) @statement
(comment) @comment
(string) @string
"=" @operator
"." @identifier
["]" "]]" "}"] @closing
