"""Models by name: what the catalogue says of them, where pulled ones lie and how they are fetched.

Knows names, files, packages and the hub; loads neither torch nor transformers.
"""
