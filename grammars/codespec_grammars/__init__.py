"""Grammar knowledge as data, one folder a language: in which syntactic context does a position lie?

A leaf: knows tree-sitter only; imports neither codespec nor the language server. Empty until the first
language comes.
"""
