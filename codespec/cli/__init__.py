"""The command line: one file per command. An error becomes one sentence and exit code 2."""

from codespec.cli.main import main

__all__ = ["main"]
