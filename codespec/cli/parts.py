"""Parts of `codespec` that other packages provide: the laboratory and the plugins."""

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

GROUP = "codespec.commands"  # entry points of the packages' modules; names that are not in PARTS are ignored


@dataclass(frozen=True, slots=True)
class Part:
    """A command of another package: the command, the package's folder in the checkout, and a help text."""

    command: str
    folder: str
    help: str = ""

    @property
    def package(self) -> str:
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
    """The interface of the module for `codespec serve --upstream`, which forwards requests to another server."""

    def connect(self, options: argparse.Namespace, config: ServeConfig) -> Source:
        """Return the daemon's source of completions; raise ConfigError for invalid settings."""

    def check(self, config: ServeConfig) -> Iterator[Finding]:
        """Yield the findings of `codespec doctor` about the upstream server."""


def find_part(name: str, modules: Mapping[str, str] | None = None) -> Any:
    """Import a part's module; `modules` replaces the installed modules. Raises ConfigError if a package is missing."""
    part, found = PARTS[name], installed() if modules is None else modules
    fix = install_fix(folder=f"./{part.folder}")
    if name not in found:
        raise ConfigError(f"`{part.command}` is in the package {part.package}, which is not installed", fix)
    try:
        return importlib.import_module(found[name])
    except ModuleNotFoundError as error:
        raise ConfigError(f"`{part.command}` needs {error.name}, which is not installed", fix) from error


def installed() -> dict[str, str]:
    """Return the module names of the installed parts, keyed by part name."""
    return {point.name: point.value for point in entry_points(group=GROUP) if point.name in PARTS}


def find_back_end() -> BackEnd:
    """Import the back end of `serve --upstream`; raise ConfigError if the back end is not installed."""
    back_end: BackEnd = find_part(UPSTREAM)
    return back_end


def add_commands(commands: Any, modules: Mapping[str, str] | None = None) -> None:
    """Add the commands in COMMANDS. Running a command that is not installed raises ConfigError."""
    found = installed() if modules is None else modules
    for name, part in COMMANDS.items():
        if name in found:
            find_part(name, found).add_parser(commands)
        else:
            no_flags = {"add_help": False, "prefix_chars": "\0"}  # `--help` and all flags are words
            parser = commands.add_parser(name, help=f"{part.help} (not installed)", **no_flags)
            parser.add_argument("words", nargs="*")
            parser.set_defaults(run=lambda options: find_part(options.command, {}))
