; Outer nodes first: if several patterns match the same bytes, the last wins.
(text) @free_text
(compound_statement) @statement
(declaration_list) @statement
(array_creation_expression) @statement
(parenthesized_expression) @statement
(subscript_expression) @statement
(arguments) @arguments

(function_definition) @signature
(function_definition body: (compound_statement) @statement)
(method_declaration) @signature
(method_declaration body: (compound_statement) @statement)
(class_declaration) @signature
(class_declaration body: (declaration_list) @statement)
(interface_declaration) @signature
(interface_declaration body: (declaration_list) @statement)
(formal_parameters) @signature

(namespace_use_declaration) @import
(namespace_definition) @import
(include_expression) @import
(require_expression) @import
(require_once_expression) @import

(comment) @comment
((comment) @docstring (#match? @docstring "^/\\*\\*"))
(string) @string
(encapsed_string) @string
(heredoc_body) @string

[
  "=" "+=" "-=" "*=" "/=" ".=" "??=" "+" "-" "*" "/" "%" "." "&&" "||" "!" "??"
  "<" "<=" "==" "===" "!=" "!==" ">=" ">" "=>" "instanceof"
] @operator
(conditional_expression "?" @operator)
(conditional_expression ":" @operator)
["->" "?->" "::"] @identifier
[")" "]" "}"] @closing

(compound_statement "{" @block_start)
(declaration_list "{" @block_start)
(switch_block "{" @block_start)
