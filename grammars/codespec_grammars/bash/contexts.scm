; Outer nodes first: if several patterns match the same bytes, the last wins.
(compound_statement) @statement
(subshell) @statement
(do_group) @statement
(test_command) @statement
(array) @statement
(command argument: (_) @arguments)
(command_substitution) @statement
(function_definition name: (word) @signature)
(function_definition "function" @signature)

(comment) @comment
(string) @string
(raw_string) @string
(ansi_c_string) @string
(heredoc_body) @string
(command argument: (string) @string)
(command argument: (raw_string) @string)
(expansion) @identifier
(simple_expansion) @identifier
(string (command_substitution) @statement)
(command argument: (command_substitution) @statement)

((command name: (command_name (word) @identifier)) @import (#any-of? @identifier "source" "."))
((command name: (command_name (word) @identifier) argument: (_) @import) (#any-of? @identifier "source" "."))

["=" "+=" "|" "||" "&&" "!" "==" "!=" "=~" "<" ">" ">>" "<<<"] @operator
(test_operator) @operator
[")" "}" "]" "]]" "fi" "done" "esac"] @closing

(compound_statement "{" @block_start)
(subshell "(" @block_start)
(if_statement "then" @block_start)
(elif_clause "then" @block_start)
(else_clause "else" @block_start)
(do_group "do" @block_start)
(case_statement "in" @block_start)
