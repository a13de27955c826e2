; inherits: ecma
(interface_declaration) @signature
(interface_declaration body: (_) @statement)
(abstract_class_declaration) @signature
(abstract_class_declaration body: (class_body) @statement)
(enum_declaration) @signature
(enum_declaration body: (enum_body) @statement)
(method_signature) @signature
(abstract_method_signature) @signature
(function_signature) @signature
(type_alias_declaration name: (type_identifier) @signature)
(object_type) @statement
(interface_body "{" @block_start)
(enum_body "{" @block_start)
(object_type "{" @block_start)
