; inherits: ecma, jsx
