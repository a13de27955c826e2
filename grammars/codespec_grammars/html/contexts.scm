(document) @free_text
(element) @free_text
(text) @free_text
(start_tag) @statement
(self_closing_tag) @statement
(end_tag) @identifier
(doctype) @statement
(script_element) @statement
(style_element) @statement
(raw_text) @statement
(comment) @comment
(quoted_attribute_value) @string
(attribute "=" @operator)
