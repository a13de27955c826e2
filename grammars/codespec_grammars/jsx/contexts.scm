; JSX, as part of JavaScript and TSX.
(jsx_element) @free_text
(jsx_text) @free_text
(jsx_expression) @statement
(jsx_opening_element) @statement
(jsx_closing_element) @identifier
(jsx_self_closing_element) @statement
