"""Build the files that an editor extension bundles as its server: `python -m tools.pack_server FOLDER`.

These are the wheels of codespec, its kernels, its weights and `--upstream`, and the pinned requirements. Wheel and
sdist are built with pinned tools in a throw-away environment. The kernels are compiled for this machine, unless
CODESPEC_KERNELS names a folder with their wheels.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CARRIED = "base"  # torch is for a checkout: the extension installs what native models need
# machine-system, as CODESPEC_TARGET of native/hatch_build.py takes them
TARGETS = ("x86_64-linux", "aarch64-linux", "x86_64-darwin", "aarch64-darwin", "x86_64-windows")
PINNED = ("--require-hashes", "--no-deps", "--only-binary", ":all:")


class PackError(Exception):
    """Raised with one sentence if the build fails."""


def pack(folder: Path) -> list[Path]:
    """Fill the folder, replacing an earlier build, and return the wheels. Raises PackError."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("codespec*.whl"):
        old.unlink()
    build(ROOT, folder, "wheel", packages=("", "weights", "plugins/upstream"))
    if built := os.environ.get("CODESPEC_KERNELS"):
        for wheel in Path(built).glob("codespec_native-*.whl"):
            shutil.copy(wheel, folder)
    else:
        build(ROOT, folder, "wheel", packages=("native",))
    for old in folder.glob("requirements-*.txt"):
        old.unlink()
    shutil.copy(ROOT / "requirements" / f"{CARRIED}.txt", folder / f"requirements-{CARRIED}.txt")
    return sorted(folder.glob("codespec*.whl"))


def build(
    checkout: Path, folder: Path, *kinds: str, packages: Sequence[str] = ("",), targets: Sequence[str] = ("",)
) -> None:
    """Build `wheel`, `sdist` or both of a checkout's packages (folders in it) into the folder, once for each target.

    A target is one of TARGETS, or "" for this machine; only the kernels depend on it. Raises PackError.
    """
    with tempfile.TemporaryDirectory(prefix="codespec-build-") as place:
        venv.create(place, with_pip=True)
        python = Path(place) / ("Scripts" if os.name == "nt" else "bin") / "python"
        pip = ("-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input")
        _run(checkout, python, *pip, *PINNED, "-r", "requirements/build.txt")
        if "native" in packages and (any(targets) or not any(map(shutil.which, ("cc", "gcc", "clang")))):
            _run(checkout, python, *pip, *PINNED, "-r", "requirements/zig.txt")
        wanted = [word for kind in kinds for word in ("-t", kind)]
        for package, target in product(packages, targets):
            command: list[str | Path] = [python, "-m", "hatchling", "build", *wanted, "-d", folder.absolute()]
            _run(checkout / package, *command, target=target)


def _run(folder: Path, *command: str | Path, target: str = "") -> None:
    if subprocess.run(command, cwd=folder, env={**os.environ, "CODESPEC_TARGET": target}, check=False).returncode:
        raise PackError(
            "pack: building the wheel failed (the message is above): fix the cause and run the build again."
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Return exit code 0 if the folder is filled, else 1 after printing one sentence."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1:
        print("pack: name one folder: `python -m tools.pack_server FOLDER`.", file=sys.stderr)
        return 1
    try:
        wheels = pack(Path(words[0]))
    except PackError as error:
        print(error, file=sys.stderr)
        return 1
    for wheel in wheels:
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
