"""`python -m codespec_native.build`: compile the library with the system's compiler, or with zig from the index.

Each instruction set is one file with its own options; a compiler that does not know an option leaves that path out.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ZIG = "ziglang==0.17.1"  # a C compiler in a wheel
SOURCES = Path(__file__).resolve().parent / "src"
PLAIN = ("forms", "threads", "rotary", "step", "library", "dispatch", "path_scalar")
AVX2 = ("-mavx2", "-mfma", "-mf16c")
# The options of each path, and how zig spells those that it takes in its own words only.
PATHS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "path_avx2": AVX2,
        "path_avxvnni": (*AVX2, "-mavxvnni"),
        "path_avx512": (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni"),
    },
    "aarch64": {"path_neon": ("-march=armv8.2-a+dotprod",)},
}
ZIG_OPTIONS = {"path_neon": ("-mcpu=generic+v8_2a+dotprod",)}
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # other systems' names
OPTIONS = (
    *("-std=c11", "-O3", "-fPIC", "-D_GNU_SOURCE"),
    *("-Wall", "-Wextra", "-Wshadow", "-Werror"),
    *("-ffp-contract=off", "-fno-math-errno"),  # multiply-adds are fused only where the text says so
)


class BuildError(Exception):
    """Raised with one sentence if the library can't be compiled."""


@dataclass(frozen=True, slots=True)
class Target:
    """What to compile for: `machine` is x86_64 or aarch64, `system` linux, darwin or windows."""

    machine: str
    system: str

    @classmethod
    def here(cls) -> Target:
        """Return this machine."""
        machine = platform.machine().lower()
        return cls(MACHINES.get(machine, machine), platform.system().lower())

    @property
    def file(self) -> str:
        """Return the library's file name."""
        return {"darwin": "codespec.dylib", "windows": "codespec.dll"}.get(self.system, "codespec.so")

    @property
    def zig(self) -> str:
        """Return zig's name of the target."""
        return (
            f"{self.machine}-"
            + {"darwin": "macos.11.0", "windows": "windows-gnu", "linux": "linux-gnu.2.28"}[self.system]
        )


# The machines that have a wheel, and its tag: zig links against glibc 2.28 and macOS 11.
TAGS = {
    Target("x86_64", "linux"): "manylinux_2_28_x86_64",
    Target("aarch64", "linux"): "manylinux_2_28_aarch64",
    Target("x86_64", "darwin"): "macosx_11_0_x86_64",
    Target("aarch64", "darwin"): "macosx_11_0_arm64",
    Target("x86_64", "windows"): "win_amd64",
}


def library_file() -> Path:
    """Return the file that this machine's library has, compiled or not."""
    return Path(__file__).resolve().parent / "lib" / Target.here().file


def sources_digest() -> str:
    """Return a digest of the C sources and this file. The library contains it, so a stale one is recognized."""
    digest = hashlib.sha256()
    for file in (Path(__file__), *sorted(SOURCES.iterdir())):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def is_built() -> bool:
    """Return whether this machine's library is there, built from these sources."""
    file = library_file()
    return file.is_file() and sources_digest().encode() in file.read_bytes()


def find_compiler(target: Target | None) -> list[str]:
    """Return the command of a C compiler. Raises BuildError if there is none.

    For a named target it is zig, which links against old enough system libraries; for None, this machine, $CC, cc, gcc
    or clang, else zig.
    """
    if target is None:
        named = os.environ.get("CC", "")
        for name in filter(None, (named, "cc", "gcc", "clang")):
            if found := shutil.which(name):
                return [found]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc", "-target", (target or Target.here()).zig]
    raise BuildError(f"There is no C compiler: install gcc or clang, or run `pip install {ZIG}`.")


def build(out: Path, target: Target | None = None, options: Sequence[str] = ()) -> None:
    """Compile the library for a target (default: this machine) into the file `out`.

    `options` are added to each compilation. Raises BuildError with the compiler's first error.
    """
    compiler = find_compiler(target)
    target = target or Target.here()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spelled = {**PATHS.get(target.machine, {}), **(ZIG_OPTIONS if "ziglang" in compiler else {})}
        paths = {
            path: spelled[path] for path in PATHS.get(target.machine, {}) if _knows(compiler, spelled[path], folder)
        }
        left_out = [f"-DNO_{path.upper()}" for path in PATHS.get(target.machine, {}) if path not in paths]
        files: dict[str, tuple[str, ...]] = {**dict.fromkeys(PLAIN, ()), **paths}
        files["library"] = (f'-DCODESPEC_SOURCES="{sources_digest()}"',)

        def compile_one(file: str) -> str:
            object_file = str(folder / f"{file}.o")
            words = [*compiler, *OPTIONS, *options, *left_out, *files[file], "-c", str(SOURCES / f"{file}.c")]
            _run([*words, "-o", object_file])
            return object_file

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            objects = list(pool.map(compile_one, files))
        out.parent.mkdir(parents=True, exist_ok=True)
        made = folder / out.name
        stripped = ("-s",) if "ziglang" in compiler else ()  # zig adds debug information, with paths of this machine
        _run([*compiler, *options, *stripped, "-shared", "-o", str(made), *objects, *_libraries(target)])
        if target.system == "windows":
            _remove_time(made)
        made.replace(out) if made.stat().st_dev == out.parent.stat().st_dev else shutil.move(made, out)


def _remove_time(file: Path) -> None:
    """Set the time in a Windows library's header to zero: the same sources give the same bytes."""
    data = bytearray(file.read_bytes())
    header = int.from_bytes(data[0x3C:0x40], "little")
    data[header + 8 : header + 12] = bytes(4)
    file.write_bytes(data)


def _libraries(target: Target) -> list[str]:
    if target.system == "darwin":
        return ["-lm", "-lpthread", f"-Wl,-install_name,@rpath/{target.file}"]  # by default the temporary path
    return [] if target.system == "windows" else ["-lm", "-lpthread"]


def _knows(compiler: Sequence[str], flags: Sequence[str], folder: Path) -> bool:
    """Return whether a compiler takes these options."""
    empty = folder / "empty.c"
    empty.write_text("int nothing;\n", encoding="utf-8")
    words = [*compiler, *flags, "-c", str(empty), "-o", str(folder / "empty.o")]
    return subprocess.run(words, capture_output=True).returncode == 0


def _run(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise BuildError(f"The C compiler failed: {errors[0] if errors else 'no error output'}")


def main() -> int:
    """Build for this machine if it is not done yet, or for another by zig."""
    parser = argparse.ArgumentParser(prog="codespec_native.build", description="Compile codespec's kernels.")
    parser.add_argument("--machine", choices=sorted(PATHS), help="the processor to compile for")
    parser.add_argument("--system", choices=("linux", "darwin", "windows"), help="the system to compile for")
    parser.add_argument("--out", type=Path, help="the file to write")
    args = parser.parse_args()
    here, target = Target.here(), None
    if args.machine or args.system:
        target = Target(args.machine or here.machine, args.system or here.system)
    try:
        if args.out or target or not is_built():
            build(args.out or library_file(), target)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
