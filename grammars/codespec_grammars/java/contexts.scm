; Outer nodes first: if several patterns match the same bytes, the last wins.
(block) @statement
(constructor_body) @statement
(class_body) @statement
(interface_body) @statement
(enum_body) @statement
(switch_block) @statement
(array_initializer) @statement
(parenthesized_expression) @statement
(array_access index: (_) @statement)
(argument_list) @arguments
(annotation_argument_list) @arguments

(class_declaration) @signature
(class_declaration body: (class_body) @statement)
(interface_declaration) @signature
(interface_declaration body: (interface_body) @statement)
(enum_declaration) @signature
(enum_declaration body: (enum_body) @statement)
(record_declaration) @signature
(record_declaration body: (class_body) @statement)
(method_declaration) @signature
(method_declaration body: (block) @statement)
(constructor_declaration) @signature
(constructor_declaration body: (constructor_body) @statement)
(formal_parameters) @signature
(modifiers (annotation (annotation_argument_list) @arguments))

(import_declaration) @import
(package_declaration) @import

(line_comment) @comment
(block_comment) @comment
((block_comment) @docstring (#match? @docstring "^/\\*\\*"))
(string_literal) @string
(character_literal) @string

[
  "=" "+=" "-=" "*=" "/=" "%=" "&=" "|=" "^=" "<<=" ">>=" ">>>="
  "+" "-" "*" "/" "%" "&" "|" "^" "<<" ">>" ">>>" "&&" "||" "!" "~"
  "<" "<=" "==" "!=" ">=" ">" "->" "instanceof"
] @operator
(ternary_expression "?" @operator)
(ternary_expression ":" @operator)
(enhanced_for_statement ":" @operator)
["." "::"] @identifier
[")" "]" "}"] @closing

(block "{" @block_start)
(constructor_body "{" @block_start)
(class_body "{" @block_start)
(interface_body "{" @block_start)
(enum_body "{" @block_start)
(switch_block "{" @block_start)
(switch_block_statement_group ":" @block_start)
