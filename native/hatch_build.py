"""Compiles the kernels while a wheel is built: for this machine, or for the one in CODESPEC_TARGET, `machine-system`.

Without a C compiler, and for another machine, pip fetches zig as a build requirement.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))
from codespec_native.build import TAGS, ZIG, BuildError, Target, build, find_compiler, is_built, library_file


def chosen_target() -> Target | None:
    """Return the target that the environment names, or None for this machine."""
    machine, _, system = os.environ.get("CODESPEC_TARGET", "").partition("-")
    return Target(machine, system) if machine else None


class KernelsHook(BuildHookInterface[Any]):
    """Adds the library to a wheel; an editable installation gets it in its own folder."""

    def dependencies(self) -> list[str]:
        """Return zig if it is the compiler."""
        try:
            return [] if "ziglang" not in find_compiler(chosen_target()) else [ZIG]
        except BuildError:
            return [ZIG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the machine in the wheel's tag."""
        target = chosen_target()
        try:
            if version == "editable":
                if not is_built():
                    build(library_file())
                return
            self._folder = tempfile.TemporaryDirectory(prefix="codespec-kernels-")
            file = Path(self._folder.name) / (target or Target.here()).file
            build(file, target)
        except BuildError as error:
            self.app.abort(str(error))
        build_data["force_include"][str(file)] = f"codespec_native/lib/{file.name}"
        build_data["pure_python"] = False
        here = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{TAGS[target] if target else here}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the compiled file, which is in the wheel now."""
        if version != "editable":
            self._folder.cleanup()
