; Outer nodes first: if several patterns match the same bytes, the last wins.
(block) @statement
(table_constructor) @statement
(parenthesized_expression) @statement
(bracket_index_expression field: (_) @statement)
(arguments) @arguments

(function_declaration "function" @signature)
(function_declaration name: (_) @signature)
(function_definition "function" @signature)
(parameters) @signature

(comment) @comment
((comment) @docstring (#match? @docstring "^---"))
(string) @string

[
  "=" "+" "-" "*" "/" "//" "%" "^" ".." "==" "~=" "<" "<=" ">" ">=" "&" "|" "~" "<<" ">>" "and" "or" "not"
] @operator
["." ":"] @identifier
[")" "]" "}" "end"] @closing

["then" "do" "else" "repeat"] @block_start
