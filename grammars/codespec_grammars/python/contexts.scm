; Where several patterns capture the same bytes the later one holds: outer things first, special ones last.
(block) @statement
(parenthesized_expression) @statement
(subscript subscript: (_) @statement)
(list) @statement
(dictionary) @statement
(set) @statement
(tuple) @statement
(argument_list) @arguments

(parameters) @signature
(lambda_parameters) @signature
(function_definition "def" @signature)
(function_definition name: (identifier) @signature)
(function_definition "->" @signature)
(function_definition return_type: (type) @signature)
(class_definition "class" @signature)
(class_definition name: (identifier) @signature)
(class_definition superclasses: (argument_list) @signature)
(lambda body: (_) @statement)

(import_statement) @import
(import_from_statement) @import
(future_import_statement) @import

(comment) @comment
(string) @string
(module . (comment)* . (expression_statement . (string) @docstring))
(block . (comment)* . (expression_statement . (string) @docstring))
(interpolation) @statement

[
  "=" "+=" "-=" "*=" "/=" "//=" "%=" "**=" ">>=" "<<=" "&=" "^=" "|=" ":="
  "+" "-" "*" "/" "//" "%" "**" "|" "&" "^" "~" "<<" ">>" "@"
  "<" "<=" "==" "!=" ">=" ">" "in" "is" "and" "or" "not"
] @operator
(comparison_operator "not in" @operator)
(comparison_operator "is not" @operator)
(pair ":" @operator)
"." @identifier
[")" "]" "}"] @closing

(if_statement ":" @block_start)
(elif_clause ":" @block_start)
(else_clause ":" @block_start)
(for_statement ":" @block_start)
(while_statement ":" @block_start)
(with_statement ":" @block_start)
(try_statement ":" @block_start)
(except_clause ":" @block_start)
(finally_clause ":" @block_start)
(match_statement ":" @block_start)
(case_clause ":" @block_start)
(function_definition ":" @block_start)
(class_definition ":" @block_start)
