; Outer nodes first: if several patterns match the same bytes, the last wins.
(body_statement) @statement
(do_block) @statement
(block) @statement
(array) @statement
(hash) @statement
(parenthesized_statements) @statement
(element_reference) @statement
(argument_list) @arguments

(method "def" @signature)
(method name: (_) @signature)
(method_parameters) @signature
(block_parameters) @signature
(class "class" @signature)
(class name: (_) @signature)
(superclass) @signature
(module "module" @signature)
(module name: (_) @signature)

(comment) @comment
(string) @string
(interpolation) @statement
((call method: (identifier) @identifier arguments: (argument_list (string) @import))
  (#any-of? @identifier "require" "require_relative" "load"))
(heredoc_body) @string
(regex) @string

[
  "=" "+=" "-=" "*=" "/=" "||=" "&&=" "+" "-" "*" "/" "%" "**" "==" "!=" "===" "=~" "<" "<=" ">" ">=" "<=>" "<<" ">>"
  "&&" "||" "!" "and" "or" "not" "=>"
] @operator
(pair ":" @operator)
(conditional "?" @operator)
(conditional ":" @operator)
["." "&." "::"] @identifier
[")" "]" "}" "end"] @closing

["then" "do" "else" "begin" "ensure"] @block_start
(block "{" @block_start)
