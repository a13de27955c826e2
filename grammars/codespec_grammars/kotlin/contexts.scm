; Outer nodes first: if several patterns match the same bytes, the last wins.
(block) @statement
(class_body) @statement
(lambda_literal) @statement
(parenthesized_expression) @statement
(index_expression) @statement
(value_arguments) @arguments

(function_declaration) @signature
(function_body) @statement
(class_declaration) @signature
(class_declaration (class_body) @statement)
(class_declaration (enum_class_body) @statement)
(class_parameters) @signature
(function_value_parameters) @signature
(delegation_specifiers) @signature

(import) @import
(package_header) @import

(line_comment) @comment
(block_comment) @comment
((block_comment) @docstring (#match? @docstring "^/\\*\\*"))
(string_literal) @string
(multiline_string_literal) @string
(character_literal) @string
(interpolation) @statement

[
  "=" "+=" "-=" "*=" "/=" "%=" "+" "-" "*" "/" "%" "&&" "||" "!" "?:" ".."
  "<" "<=" "==" "===" "!=" "!==" ">=" ">" "->" "in" "is" "as"
] @operator
["." "?." "::"] @identifier
[")" "]" "}"] @closing

(block "{" @block_start)
(class_body "{" @block_start)
(enum_class_body "{" @block_start)
(lambda_literal "{" @block_start)
(when_expression "{" @block_start)
