"""The version of the language server, which is codespec's. The only module here that imports the top-level package."""

from codespec import __version__ as VERSION

__all__ = ["VERSION"]
