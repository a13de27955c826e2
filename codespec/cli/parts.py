"""Parts of `codespec` in packages of their own: the laboratory and the plugins, found through their entry points.

A package names its modules in the entry-point group `codespec.commands`. A part whose package is not installed is one
sentence that says how to install it. Other names in the group are ignored.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol

from codespec.errors import ConfigError, install_fix

if TYPE_CHECKING:
    from codespec.api.config import ServeConfig
    from codespec.errors import Finding
    from codespec.server.daemon import Source

GROUP = "codespec.commands"


@dataclass(frozen=True, slots=True)
class Part:
    """What users write for a part, its package's folder in a checkout, and its line in `codespec --help`."""

    command: str
    folder: str
    help: str = ""

    @property
    def package(self) -> str:
        """The package's name."""
        return f"codespec-{self.folder.rpartition('/')[2]}"


COMMANDS = {
    "train": Part("codespec train", "lab", "train a target and a drafter"),
    "distill": Part("codespec distill", "lab", "train a drafter on its target's output in your code"),
    "bench": Part("codespec bench", "lab", "measure on this machine"),
    "scale": Part("codespec scale", "plugins/scale", "run several daemons behind one address (Ray Serve)"),
}
UPSTREAM = "upstream"
PARTS = {**COMMANDS, UPSTREAM: Part("codespec serve --upstream", "plugins/upstream")}


class BackEnd(Protocol):
    """The module that lets another server write (`codespec serve --upstream`)."""

    def connect(self, options: argparse.Namespace, config: ServeConfig) -> Source:
        """Return the source of text for the daemon. Raises ConfigError for settings that can't be used."""

    def check(self, config: ServeConfig) -> Iterator[Finding]:
        """Check the server, for `codespec doctor`."""


def find_part(name: str, modules: Mapping[str, str] | None = None) -> Any:
    """Return a part's module. Raises ConfigError if its package, or one that it needs, is not installed.

    `modules` maps parts to modules; by default they come from the entry points.
    """
    part, found = PARTS[name], installed() if modules is None else modules
    fix = install_fix(folder=f"./{part.folder}")
    if name not in found:
        raise ConfigError(f"`{part.command}` is in the package {part.package}, which is not installed", fix)
    try:
        return importlib.import_module(found[name])
    except ModuleNotFoundError as error:
        raise ConfigError(f"`{part.command}` needs {error.name}, which is not installed", fix) from error


def installed() -> dict[str, str]:
    """Return the modules of the installed parts, by name."""
    return {point.name: point.value for point in entry_points(group=GROUP) if point.name in PARTS}


def find_back_end() -> BackEnd:
    """Return the back end that lets another server write. Raises ConfigError if it is not installed."""
    back_end: BackEnd = find_part(UPSTREAM)
    return back_end


def add_commands(commands: Any, modules: Mapping[str, str] | None = None) -> None:
    """Add every command that is a part, or a placeholder whose run raises the error of `find_part`."""
    found = installed() if modules is None else modules
    for name, part in COMMANDS.items():
        if name in found:
            find_part(name, found).add_parser(commands)
        else:
            no_flags = {"add_help": False, "prefix_chars": "\0"}  # treat all that follows as words, including `--help`
            parser = commands.add_parser(name, help=f"{part.help} (not installed)", **no_flags)
            parser.add_argument("words", nargs="*")
            parser.set_defaults(run=lambda options: find_part(options.command, {}))
