"""Other people's packages that benchmarks run: each in this interpreter or in an environment of its own in the user's
cache folder. Knows where they are; installs and runs nothing.
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
    """A package, the version that was tried, the name that Python imports, and variables for its installation."""

    name: str
    version: str
    module: str
    variables: str = ""

    @property
    def environment(self) -> Path:
        """The virtual environment in which benchmarks look for it."""
        return cache_folder() / "peers" / f"{self.name}-{self.version}"

    @property
    def missing(self) -> str:
        """One sentence without a full stop: it isn't there, and the commands that install it where it is looked for."""
        place, python = self.environment, Path(sys.executable).name
        install = f"{self.variables} {place}/bin/pip install {self.name}=={self.version}".lstrip()
        commands = f"{python} -m venv {place} && {install}"
        return f"{self.name} is not installed: run `{commands}`"

    def folder(self) -> Path | None:
        """The folder of its module, in this interpreter or in `environment`."""
        spec = importlib.util.find_spec(self.module)
        if spec is not None and spec.origin:
            return Path(spec.origin).parent
        return next(self.environment.glob(f"lib/python*/site-packages/{self.module}"), None)

    def installed_version(self) -> str:
        """The version that is installed where `folder` is; "" if it is not known."""
        place = self.folder()
        if place is None:
            return ""
        found = importlib.metadata.distributions(path=[str(place.parent)], name=self.name)
        return next((one.version for one in found), "")

    def python(self) -> Path | None:
        """The Python that can import it."""
        if importlib.util.find_spec(self.module) is not None:
            return Path(sys.executable)
        return self.environment / "bin" / "python" if self.folder() else None
