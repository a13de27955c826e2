"""argparse with one-sentence errors, without abbreviated flags, and with rarely used settings only in --help-all."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from codespec.cli.ending import MISTAKE, one_line


class Parser(argparse.ArgumentParser):
    """The parser of `codespec` and of its sub-commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})
        self._short: dict[argparse.Action, str] = {}  # the texts in --help of flags with more in --help-all

    def add_rare(self, group: argparse._ActionsContainer, *flags: str, **settings: Any) -> None:
        """Add a flag that only --help-all shows."""
        self.add_short(argparse.SUPPRESS, group, *flags, **settings)

    def add_short(self, short: str, group: argparse._ActionsContainer, *flags: str, **settings: Any) -> None:
        """Add a flag whose text in --help is `short`; its `help` is in --help-all."""
        if not self._short:
            self.add_argument("--help-all", action=_HelpAll, help="show all settings and exit")
        self._short[group.add_argument(*flags, **settings)] = short

    def format_help(self) -> str:
        """Return the help with short texts and without the rare flags."""
        texts = {action: action.help for action in self._short}
        for action, text in self._short.items():
            action.help = text
        try:
            return self.format_help_all()
        finally:
            for action, whole in texts.items():
                action.help = whole

    def format_help_all(self) -> str:
        """Return the help with all flags."""
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but let a sub-command refuse unknown arguments itself and refer to its own help."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """Print the error and a reference to the help, and exit with 2."""
        self.exit(MISTAKE, f"codespec: {one_line(message)}; see `{self.prog} --help`.\n")


class _HelpAll(argparse.Action):
    def __init__(self, option_strings: list[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, Parser)
        sys.stdout.write(parser.format_help_all())
        parser.exit()
