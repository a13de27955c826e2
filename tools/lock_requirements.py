"""Write requirements/*.txt: every package that codespec needs, with its version and the hashes of all its wheels.

With `pip install --require-hashes`, an index cannot substitute anything else. uv, in a throw-away environment,
resolves the packages; constraints.txt alone decides the versions. No index address is written. PyTorch's CPU build
is a separate file, absent from the package index: its hash is added if pip, as configured here, would choose it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = "uv==0.13.8"
LEAST_PYTHON = "3.11"
HEADER = """\
# {about}
# Made by `python -m tools.lock_requirements`, with the versions of constraints.txt: change those, not this.
"""
ABOUT = {
    "editor": "The editor side: the language server, no model.",
    "engine": "The editor side and the engine, without what only a torch with CUDA needs (cuda.txt).",
    "cuda": "What a torch with CUDA needs besides engine.txt.",
    "build": "What builds the wheel.",
}
_BROWSER = "sys_platform == 'emscripten'"  # a Python platform that codespec does not support
_CUDA = re.compile(r"(?:nvidia|cuda)-.*|triton")
_PIN = re.compile(r"(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?:\s*;\s*(?P<marker>[^\\]+?))?\s*\\?")
_HASH = re.compile(r"\s+--hash=sha256:([0-9a-f]{64})\s*\\?")


class LockError(Exception):
    """Raised with one sentence if the lock cannot be made."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One pinned package of a requirements file."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]

    def __str__(self) -> str:
        head = f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")
        return " \\\n".join([head, *(f"    --hash=sha256:{each}" for each in self.hashes)])


def canonical(name: str) -> str:
    """Return a package's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(text: str) -> list[Pin]:
    """Return the pins of a requirements file. Raises ValueError for any other kind of line except comments."""
    found: list[Pin] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if head := _PIN.fullmatch(line):
            found.append(Pin(canonical(head["name"]), head["version"], head["marker"] or "", ()))
        elif found and (hashed := _HASH.fullmatch(line)):
            last = found[-1]
            found[-1] = Pin(last.name, last.version, last.marker, (*last.hashes, hashed[1]))
        else:
            raise ValueError(f"no pin and no hash: {line!r}")
    return found


def file_text(kind: str, pins: list[Pin]) -> str:
    """Return the text of a requirements file."""
    return HEADER.format(about=ABOUT[kind]) + "".join(f"{pin}\n" for pin in pins)


def with_hash(pins: list[Pin], name: str, added: str) -> list[Pin]:
    """Return the same pins, with one more hash for one of them."""
    return [
        Pin(pin.name, pin.version, pin.marker, (*pin.hashes, added))
        if pin.name == name and added not in pin.hashes
        else pin
        for pin in pins
    ]


class Tools:
    """Environment with uv and pip, for one run."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        scripts = folder / ("Scripts" if os.name == "nt" else "bin")
        self._python = str(scripts / "python")
        self._run(["-m", "pip", "install", "-q", "--disable-pip-version-check", UV])

    def compile(self, source: str, *extras: str, given: str = "") -> list[Pin]:
        """Return everything that `source` needs on every platform, resolved by uv."""
        wanted = [word for extra in extras for word in ("--extra", extra)]
        how = ["--universal", "--python-version", LEAST_PYTHON, "--only-binary", ":all:", "--generate-hashes"]
        plain = ["--no-header", "--no-annotate", "--no-progress", "--quiet", "--no-config"]
        pinned = ["-c", "constraints.txt"]
        found = read_pins(self._run(["-m", "uv", "pip", "compile", source, *wanted, *pinned, *how, *plain], given))
        return [pin for pin in found if _BROWSER not in pin.marker]

    def cpu_torch(self, version: str) -> str | None:
        """Return the hash of PyTorch's CPU build, or None if pip would not choose that build."""
        words = ["-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--no-deps", "--report", "-"]
        report = json.loads(self._run([*words, f"torch=={version}"]))
        (torch,) = report["install"]
        if "+" not in torch["metadata"]["version"]:
            return None
        return str(torch["download_info"]["archive_info"]["hashes"]["sha256"])

    def _run(self, words: list[str], given: str = "") -> str:
        done = subprocess.run(
            [self._python, *words], cwd=ROOT, input=given, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise LockError(f"lock: `{' '.join(words[1:4])} …` failed, nothing was written:\n{done.stderr.strip()}")
        return done.stdout


def lock(tools: Tools) -> dict[str, list[Pin]]:
    """Return the pins of every file."""
    engine = tools.compile("pyproject.toml", "engine")
    (torch,) = [pin for pin in engine if pin.name == "torch"]
    cpu = tools.cpu_torch(torch.version)
    if cpu:
        engine = with_hash(engine, "torch", cpu)
    return {
        "editor": tools.compile("pyproject.toml"),
        "engine": [pin for pin in engine if not _CUDA.fullmatch(pin.name)],
        "cuda": [pin for pin in engine if _CUDA.fullmatch(pin.name)],
        "build": tools.compile("-", given="hatchling\n"),
    }


def main() -> int:
    """Return exit code 0 if all files are written, 1 if none is."""
    with tempfile.TemporaryDirectory(prefix="codespec-lock-") as folder:
        try:
            found = lock(Tools(Path(folder)))
        except LockError as error:
            print(error, file=sys.stderr)
            return 1
    for kind, pins in found.items():
        path = ROOT / "requirements" / f"{kind}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(file_text(kind, pins), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {len(pins)} packages, {sum(len(pin.hashes) for pin in pins)} hashes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
