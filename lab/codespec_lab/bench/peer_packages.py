"""Find the third-party packages that benchmarks run, in this interpreter or in a virtual environment in the user's
cache folder. Nothing is installed or run.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

from codespec.user_folders import cache_folder


@dataclass(frozen=True, slots=True)
class PeerPackage:
    """A package, the version that was tested, its import name, and environment variables for its installation."""

    name: str
    version: str
    module: str
    variables: str = ""

    @property
    def environment(self) -> Path:
        """Return the virtual environment in which benchmarks look for the package."""
        return cache_folder() / "peers" / f"{self.name}-{self.version}"

    @property
    def missing(self) -> str:
        """Return one sentence without a full stop that the package is missing, with the commands to install it."""
        place, python = self.environment, Path(sys.executable).name
        install = f"{self.variables} {place}/bin/pip install {self.name}=={self.version}".lstrip()
        commands = f"{python} -m venv {place} && {install}"
        return f"{self.name} is not installed: run `{commands}`"

    def folder(self) -> Path | None:
        """Return the folder of its module, in this interpreter or in `environment`."""
        spec = importlib.util.find_spec(self.module)
        if spec is not None and spec.origin:
            return Path(spec.origin).parent
        return next(self.environment.glob(f"lib/python*/site-packages/{self.module}"), None)

    def installed_version(self) -> str:
        """Return the version installed in `folder`, or "" if unknown."""
        place = self.folder()
        if place is None:
            return ""
        found = importlib.metadata.distributions(path=[str(place.parent)], name=self.name)
        return next((one.version for one in found), "")

    def python(self) -> Path | None:
        """Return the Python that can import the package."""
        if importlib.util.find_spec(self.module) is not None:
            return Path(sys.executable)
        return self.environment / "bin" / "python" if self.folder() else None
