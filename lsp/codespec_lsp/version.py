"""The version: the language server's is codespec's own. The one module here that takes the package itself."""

from codespec import __version__ as VERSION

__all__ = ["VERSION"]
