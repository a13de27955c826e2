; Outer nodes first: if several patterns match the same bytes, the last wins.
(compound_statement) @statement
(field_declaration_list) @statement
(enumerator_list) @statement
(initializer_list) @statement
(parenthesized_expression) @statement
(subscript_expression argument: (_) (_) @statement)
(argument_list) @arguments

(function_definition) @signature
(function_definition body: (compound_statement) @statement)
(function_declarator) @signature
(parameter_list) @signature
(preproc_function_def name: (identifier) @signature)
(preproc_params) @signature
(struct_specifier) @signature
(struct_specifier body: (field_declaration_list) @statement)
(union_specifier) @signature
(union_specifier body: (field_declaration_list) @statement)
(enum_specifier) @signature
(enum_specifier body: (enumerator_list) @statement)

(preproc_include) @import

(comment) @comment
((comment) @docstring (#match? @docstring "^/(\\*\\*|//)"))
(string_literal) @string
(char_literal) @string
(preproc_include path: (string_literal) @import)

[
  "=" "+=" "-=" "*=" "/=" "%=" "&=" "|=" "^=" "<<=" ">>="
  "+" "-" "*" "/" "%" "&" "|" "^" "<<" ">>" "&&" "||" "!" "~"
  "<" "<=" "==" "!=" ">=" ">"
] @operator
(conditional_expression "?" @operator)
(conditional_expression ":" @operator)
["." "->"] @identifier
[")" "]" "}"] @closing

(compound_statement "{" @block_start)
(field_declaration_list "{" @block_start)
(enumerator_list "{" @block_start)
(case_statement ":" @block_start)
