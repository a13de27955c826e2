; Patterns that JavaScript and TypeScript share. Outer nodes first: if several patterns match the same bytes, the last wins.
(statement_block) @statement
(class_body) @statement
(switch_body) @statement
(object) @statement
(array) @statement
(parenthesized_expression) @statement
(subscript_expression index: (_) @statement)
(arguments) @arguments

(function_declaration) @signature
(function_declaration body: (statement_block) @statement)
(generator_function_declaration) @signature
(generator_function_declaration body: (statement_block) @statement)
(function_expression) @signature
(function_expression body: (statement_block) @statement)
(method_definition) @signature
(method_definition body: (statement_block) @statement)
(formal_parameters) @signature
(class_declaration) @signature
(class_declaration body: (class_body) @statement)
(class_heritage) @signature

(import_statement) @import
(export_statement source: (string)) @import

(comment) @comment
((comment) @docstring (#match? @docstring "^/\\*\\*"))
(string) @string
(template_string) @string
(template_substitution) @statement
(regex) @string
(import_statement source: (string) @import)
(export_statement source: (string) @import)

[
  "=" "+=" "-=" "*=" "/=" "%=" "**=" "<<=" ">>=" ">>>=" "&=" "|=" "^=" "&&=" "||=" "??="
  "+" "-" "*" "/" "%" "**" "&" "|" "^" "<<" ">>" ">>>" "&&" "||" "??" "!" "~"
  "<" "<=" "==" "===" "!=" "!==" ">=" ">" "=>" "in" "instanceof" "typeof" "..."
] @operator
(ternary_expression "?" @operator)
(ternary_expression ":" @operator)
(pair ":" @operator)
"." @identifier
(optional_chain) @identifier
[")" "]" "}"] @closing

(statement_block "{" @block_start)
(class_body "{" @block_start)
(switch_body "{" @block_start)
(switch_case ":" @block_start)
(switch_default ":" @block_start)
