"""The command line: one file a command; errors become one sentence and exit code 2."""

from codespec.cli.main import main

__all__ = ["main"]
