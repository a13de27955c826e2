; Outer nodes first: if several patterns match the same bytes, the last wins.
(block) @statement
(literal_value) @statement
(field_declaration_list) @statement
(parenthesized_expression) @statement
(index_expression index: (_) @statement)
(argument_list) @arguments

(function_declaration) @signature
(function_declaration body: (block) @statement)
(method_declaration) @signature
(method_declaration body: (block) @statement)
(func_literal) @signature
(func_literal body: (block) @statement)
(parameter_list) @signature
(method_elem) @signature
(type_spec name: (type_identifier) @signature)
(type_declaration "type" @signature)
(interface_type "{" @block_start)
(struct_type (field_declaration_list "{" @block_start))

(import_declaration) @import
(package_clause) @import

(comment) @comment
(interpreted_string_literal) @string
(raw_string_literal) @string
(import_spec path: (_) @import)

[
  "=" ":=" "+=" "-=" "*=" "/=" "%=" "&=" "|=" "^=" "<<=" ">>=" "&^="
  "+" "-" "*" "/" "%" "&" "|" "^" "<<" ">>" "&^" "&&" "||" "!" "<-"
  "<" "<=" "==" "!=" ">=" ">" "range"
] @operator
(keyed_element ":" @operator)
"." @identifier
[")" "]" "}"] @closing

(block "{" @block_start)
(expression_switch_statement "{" @block_start)
(type_switch_statement "{" @block_start)
(select_statement "{" @block_start)
(expression_case ":" @block_start)
(default_case ":" @block_start)
(type_case ":" @block_start)
(communication_case ":" @block_start)
