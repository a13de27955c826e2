"""Every path gives the bits of the scalar one: those of this processor, the others in emulation, arm64 under qemu.

`check.c` runs all kernels and a tiny model on one path and prints a hash of each result.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from codespec_native.build import OPTIONS, PATHS, PLAIN, SOURCES, Target, library_file
from codespec_native.library import paths

CHECK = Path(__file__).with_name("check.c")
EMULATION = Path(__file__).with_name("simde")
ARM_COMPILER = "aarch64-linux-gnu-gcc"
# Kernels for any number of rows only, less optimized: compiled in a tenth of the time.
QUICK = ("-O1", "-DONE_KERNEL")
SCALAR_ONLY = ("-DNO_PATH_AVX512", "-DNO_PATH_AVXVNNI", "-DNO_PATH_AVX2", "-DNO_PATH_NEON", "-w")
ON_X86 = pytest.mark.skipif(Target.here().machine != "x86_64", reason="needs x86-64")


def run(*words: object) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stderr}\n{done.stdout}"
    return done.stdout


def compiled(compiler: str, folder: Path, files: dict[str, Sequence[str]], options: Sequence[str] = ()) -> list[Path]:
    """Compile sources with their own flags to object files."""
    objects = []
    for name, flags in files.items():
        objects.append(folder / f"{name}.o")
        run(compiler, *OPTIONS, *options, *flags, "-c", SOURCES / f"{name}.c", "-o", objects[-1])
    return objects


def linked(compiler: str, folder: Path, objects: Sequence[Path], options: Sequence[str] = ()) -> Path:
    program = folder / "check"
    run(compiler, *OPTIONS, *options, CHECK, *objects, "-o", program, "-lm", "-lpthread")
    return program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The check against the library that is installed."""
    library, folder = library_file(), tmp_path_factory.mktemp("check")
    return linked("cc", folder, [library], [f"-Wl,-rpath,{library.parent}"])


@pytest.fixture(scope="module")
def reference(program: Path) -> str:
    return run(program, "scalar")


def test_the_check_reports_every_kernel(reference: str) -> None:
    lines = reference.splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :], "one thread and three threads differ"
    names = {line.split()[0] for line in lines}
    assert names == {"product", "decode", "norm", "gate", "add", "rotate", "half", "rotary", "step", "tokens"}
    assert "differs" not in reference
    assert len({line.split()[2] for line in lines}) > 30, "results that do not depend on their inputs"


@pytest.mark.parametrize("path", [path for path in paths() if path != "scalar"])
def test_this_processors_paths_equal_the_scalar_one(program: Path, reference: str, path: str) -> None:
    assert run(program, path) == reference


@pytest.mark.full
@ON_X86
@pytest.mark.parametrize("path", ["avx512", "avxvnni"])
def test_emulated_path_equals_the_scalar_one(path: str, reference: str, tmp_path: Path) -> None:
    """The emulated path stands in for AVX2's, which every processor here may run."""
    if not Path("/usr/include/simde/x86/avx512.h").is_file():
        pytest.skip("needs SIMDe: apt-get install libsimde-dev")
    plain = [name for name in PLAIN if name != "dispatch"]
    objects = compiled("cc", tmp_path, dict.fromkeys(plain, ()), QUICK)
    alone = (f"-Dkernels_avx2=kernels_{path}", "-DNO_PATH_AVX512", "-DNO_PATH_AVXVNNI", "-w")
    objects += compiled("cc", tmp_path, {"dispatch": alone})
    emulated = ("-w", "-std=gnu11", "-DSIMDE_NO_NATIVE", f"-I{EMULATION}", f"-I{SOURCES}")
    objects += compiled("cc", tmp_path, {f"path_{path}": emulated}, QUICK)
    assert run(linked("cc", tmp_path, objects), path) == reference


@pytest.mark.full
def test_arm64_paths_equal_the_scalar_one(reference: str, tmp_path: Path) -> None:
    if not (shutil.which(ARM_COMPILER) and shutil.which("qemu-aarch64")):
        pytest.skip("needs qemu-user and gcc-aarch64-linux-gnu")
    objects = compiled(ARM_COMPILER, tmp_path, {**dict.fromkeys(PLAIN, ()), **PATHS["aarch64"]}, QUICK)
    program = linked(ARM_COMPILER, tmp_path, objects, ["-static"])
    for path in ("neon", "scalar"):
        assert run("qemu-aarch64", program, path) == reference, path


@pytest.mark.full
def test_no_undefined_behaviour_and_no_memory_error(reference: str, tmp_path: Path) -> None:
    options = ("-fsanitize=address,undefined", "-fno-sanitize-recover", *QUICK)
    files = {**dict.fromkeys(PLAIN, ()), **PATHS[Target.here().machine]}
    program = linked("cc", tmp_path, compiled("cc", tmp_path, files, options), options)
    environment = {"ASAN_OPTIONS": "detect_leaks=0"}  # check.c ends without freeing its models
    for path in paths():
        done = subprocess.run([str(program), path], capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stdout) == (0, reference), done.stderr


@pytest.mark.parametrize(
    "fault",
    [
        (
            "kernels.inc",
            "sum[h][r] = f_fma(found, factor, sum[h][r]);",
            "sum[h][r] = f_add(f_mul(found, factor), sum[h][r]);",
        ),
        ("kernels.inc", "i_start(0, 0, -offset, block->half)", "i_start(0, -offset, 0, block->half)"),
        ("kernels.inc", "f_set(-MAGIC)", "f_set(1 - MAGIC)"),
        ("kernels.inc", "b_right(plane, j - 4), 16", "b_right(plane, j - 4), 8"),
    ],
    ids=["float order", "offset of the second half", "shift of the sums", "high bit"],
)
def test_a_planted_fault_is_seen(fault: tuple[str, str, str], reference: str, tmp_path: Path) -> None:
    file, right, wrong = fault
    shutil.copytree(SOURCES, tmp_path / "src")
    text = (tmp_path / "src" / file).read_text()
    assert text.count(right) == 1
    (tmp_path / "src" / file).write_text(text.replace(right, wrong))
    objects = []
    for name in PLAIN:
        objects.append(tmp_path / f"{name}.o")
        run("cc", *OPTIONS, *QUICK, *SCALAR_ONLY, "-c", tmp_path / "src" / f"{name}.c", "-o", objects[-1])
    assert run(linked("cc", tmp_path, objects), "scalar") != reference
