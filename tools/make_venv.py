"""Build `.venv` for the Makefile: pinned packages, and codespec editable.

`python -m tools.make_venv light` installs what serves a GGUF file, without torch, for `make demo` and `make serve`.
Without the word, torch, tests and all languages are added, in the same folder.

`.venv/.codespec-unfinished` exists from the first to the last step, so that an interrupted set-up starts afresh.
`.venv/.codespec-light` and `.venv/.codespec-ready` contain the path of the checkout and are written last.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALONE = ("./lab", "./plugins/scale", "./plugins/upstream", "./native")
IMPORTED = ("tokenizers", "codespec", "codespec_lab", "codespec_weights", "codespec_native.library")
EXTRAS = "torch,dev,all-grammars"
ZIG = "ziglang==0.17.1"  # a C compiler in a wheel, for machines without one
TORCH_SIZE = "torch has about 200 MB as a CPU build, and 3 GB with CUDA"
MISSING = (
    "set-up: this Python has no `{}`, which building .venv needs; "
    "install it (on Debian and Ubuntu: apt-get install python3-venv), then run make again."
)


class SetupError(Exception):
    """Raised with one sentence if the set-up fails."""


class Venv:
    """Virtual environment of one checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / ".venv"
        self.python = self.path / "bin" / "python"
        self.unfinished = self.path / ".codespec-unfinished"
        self.light = self.path / ".codespec-light"
        self.ready = self.path / ".codespec-ready"
        self.constraints = root / "constraints.txt"

    def begin(self) -> None:
        """Mark the set-up as under way, in the existing venv if it works, else in a new one."""
        if self._usable():
            self._rehearse()
        elif self.path.exists():
            print("set-up: .venv is unfinished or broken, building it afresh", flush=True)
            shutil.rmtree(self.path)
        self.path.mkdir(exist_ok=True)
        self.unfinished.touch()
        for mark in (self.light, self.ready):
            mark.unlink(missing_ok=True)
        if not self.python.exists():
            self._run([sys.executable, "-m", "venv", self.path], "building .venv")

    def finish(self, light: bool) -> None:
        """Mark the venv as ready. The order matters: if interrupted in between, it counts as not ready."""
        self.unfinished.unlink()
        for mark in (self.light,) if light else (self.light, self.ready):
            mark.write_text(f"{self.root}\n")

    def install(self, *what: str | Path) -> None:
        """Run pip with our pins, showing its progress and messages."""
        self._run([*self._pip, "-c", self.constraints, *what], f"installing {what[-1]}")

    def _rehearse(self) -> None:
        """Fail early, before changing a working venv, if a pinned version is not available."""
        self._run([*self._pip, "-qq", "--dry-run", "-r", self.constraints], "finding the pinned packages")

    @property
    def _pip(self) -> list[str | Path]:
        # Python compiles what it imports, once; compiling every file of torch and transformers takes 25 s more.
        return [self.python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--no-compile"]

    def can_import(self, *modules: str) -> None:
        """Fail if an installed package does not load on this machine."""
        self._run([self.python, "-c", "import " + ", ".join(modules)], f"importing {', '.join(modules)}")

    def compile_kernels(self) -> None:
        """Compile the native kernels if they are not built yet."""
        self._run([self.python, self.root / "native" / "codespec_native" / "build.py"], "compiling the kernels")

    def _usable(self) -> bool:
        """Return whether the venv can be completed in place: finished, of this folder, with working Python and pip."""
        if self.unfinished.exists() or not self.python.exists():
            return False
        for mark in (self.light, self.ready):
            if mark.exists() and mark.read_text().strip() != str(self.root):
                return False
        probe = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
        return subprocess.run([self.python, "-c", probe], capture_output=True, check=False).returncode == 0

    def _run(self, command: list[str | Path], what: str) -> None:
        if subprocess.run(command, cwd=self.root, check=False).returncode:
            raise SetupError(
                f"set-up: {what} failed (the message is above); check the network, pip's index and the "
                "disk, then run make again."
            )


def check_python() -> None:
    """Raise SetupError if this Python cannot build a venv."""
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            raise SetupError(MISSING.format(module))


def pinned(package: str, constraints: Path) -> str:
    """Return the package's line of the constraints file, such as `torch==2.13.0`."""
    for line in constraints.read_text().splitlines():
        if line.startswith(f"{package}=="):
            return line.strip()
    raise SetupError(f"set-up: {constraints.name} pins no {package}; add the line `{package}==…`.")


def build(venv: Venv, light: bool = False) -> None:
    """Run the whole set-up, in the order in which a user should see it."""
    check_python()
    size = "half a minute, a download of 35 MB" if light else f"a minute or two and the download: {TORCH_SIZE}"
    print(f"set-up: building .venv (once; {size})", flush=True)
    venv.begin()
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        venv.install("-q", ZIG)
    with ThreadPoolExecutor(1) as pool:
        compiled = pool.submit(venv.compile_kernels)  # pip mostly waits for the network meanwhile
        if not light:
            venv.install(pinned("torch", venv.constraints))
        venv.install("-q", pinned("hatchling", venv.constraints))
        venv.install("-q", "--no-build-isolation", "-e", "./weights", "-e", "." if light else f".[{EXTRAS}]")
        compiled.result()
    # Without their dependencies: the laboratory's are in `torch`, the plugins' in codespec, and Ray is left out.
    venv.install("-q", "--no-build-isolation", "--no-deps", *(word for name in ALONE for word in ("-e", name)))
    venv.can_import(*(() if light else ("torch", "transformers")), *IMPORTED)
    venv.finish(light)
    print("set-up: .venv is ready", flush=True)


def main() -> int:
    """Return exit code 0 if ready, 1 after printing one sentence if not, 130 if interrupted."""
    try:
        build(Venv(ROOT), light=sys.argv[1:] == ["light"])
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nset-up: interrupted; run make again to start it afresh.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
