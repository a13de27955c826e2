; inherits: c
(namespace_definition) @signature
(namespace_definition body: (declaration_list) @statement)
(class_specifier) @signature
(class_specifier body: (field_declaration_list) @statement)
(template_parameter_list) @signature
(lambda_expression) @signature
(lambda_expression body: (compound_statement) @statement)
(field_initializer_list) @signature
(field_initializer (argument_list) @arguments)
(using_declaration) @import
(raw_string_literal) @string
"::" @identifier
(declaration_list "{" @block_start)
