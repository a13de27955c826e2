(object) @statement
(array) @statement
(comment) @comment
(string) @string
(pair ":" @operator)
["]" "}"] @closing
(object "{" @block_start)
(array "[" @block_start)
