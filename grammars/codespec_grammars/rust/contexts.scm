; Outer nodes first: if several patterns match the same bytes, the last wins.
(block) @statement
(declaration_list) @statement
(field_declaration_list) @statement
(enum_variant_list) @statement
(match_block) @statement
(field_initializer_list) @statement
(array_expression) @statement
(tuple_expression) @statement
(parenthesized_expression) @statement
(arguments) @arguments
(macro_invocation (token_tree) @arguments)

(function_item) @signature
(function_item body: (block) @statement)
(function_signature_item) @signature
(closure_parameters) @signature
(parameters) @signature
(struct_item) @signature
(struct_item body: (field_declaration_list) @statement)
(enum_item) @signature
(enum_item body: (enum_variant_list) @statement)
(trait_item) @signature
(trait_item body: (declaration_list) @statement)
(impl_item) @signature
(impl_item body: (declaration_list) @statement)

(use_declaration) @import
(extern_crate_declaration) @import

(line_comment) @comment
(block_comment) @comment
((line_comment) @docstring (#match? @docstring "^//[/!]"))
((block_comment) @docstring (#match? @docstring "^/\\*[*!]"))
(string_literal) @string
(raw_string_literal) @string

[
  "=" "+=" "-=" "*=" "/=" "%=" "&=" "|=" "^=" "<<=" ">>="
  "+" "-" "*" "/" "%" "&" "&&" "||" "^" "<<" ">>" "!" ".." "..="
  "<" "<=" "==" "!=" ">=" ">" "=>" "as"
] @operator
(binary_expression "|" @operator)
(field_initializer ":" @operator)
["." "::"] @identifier
[")" "]" "}"] @closing

(block "{" @block_start)
(declaration_list "{" @block_start)
(field_declaration_list "{" @block_start)
(enum_variant_list "{" @block_start)
(match_block "{" @block_start)
