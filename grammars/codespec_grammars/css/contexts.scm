(selectors) @statement
(block) @statement
(arguments) @arguments
(import_statement) @import
(comment) @comment
(string_value) @string
(import_statement (string_value) @import)
(declaration ":" @operator)
(feature_query ":" @operator)
[")" "]" "}"] @closing
(block "{" @block_start)
(binary_expression ["+" "-" "*" "/"] @operator)
(child_selector ">" @operator)
