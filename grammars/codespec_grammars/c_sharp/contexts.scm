; Outer nodes first: if several patterns match the same bytes, the last wins.
(block) @statement
(declaration_list) @statement
(enum_member_declaration_list) @statement
(accessor_list) @statement
(initializer_expression) @statement
(parenthesized_expression) @statement
(element_access_expression (bracketed_argument_list) @statement)
(argument_list) @arguments

(class_declaration) @signature
(class_declaration body: (declaration_list) @statement)
(interface_declaration) @signature
(interface_declaration body: (declaration_list) @statement)
(struct_declaration) @signature
(struct_declaration body: (declaration_list) @statement)
(enum_declaration) @signature
(enum_declaration body: (_) @statement)
(method_declaration) @signature
(method_declaration body: (block) @statement)
(constructor_declaration) @signature
(constructor_declaration body: (block) @statement)
(constructor_initializer (argument_list) @arguments)
(parameter_list) @signature

(using_directive) @import

(comment) @comment
((comment) @docstring (#match? @docstring "^///"))
(string_literal) @string
(verbatim_string_literal) @string
(raw_string_literal) @string
(character_literal) @string
(interpolated_string_expression) @string
(interpolation) @statement

[
  "=" "+=" "-=" "*=" "/=" "%=" "&=" "|=" "^=" "??=" "+" "-" "*" "/" "%" "&" "|" "^" "<<" "&&" "||" "??" "!" "~"
  "<" "<=" "==" "!=" ">=" ">" "=>" "is" "as"
] @operator
(conditional_expression "?" @operator)
(conditional_expression ":" @operator)
["." "::"] @identifier
[")" "]" "}"] @closing

(block "{" @block_start)
(declaration_list "{" @block_start)
(accessor_list "{" @block_start)
(enum_member_declaration_list "{" @block_start)
(switch_body "{" @block_start)
