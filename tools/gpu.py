"""`make gpu`: run the tests and benchmarks that need a GPU in parts, the most useful short ones first.

A part that already has a complete result is skipped. With `--minutes`, the whole run ends within that time: a part may
use all the time left, but does not start with less than it needs. With `--tar`, all results are packed into one file
after every part, so that at most one part is lost if the machine is taken away. No virtual environment is needed, only
a Python with torch, transformers, tokenizers and pytest.

Each part's own command writes its figures. The result also records the command, the commit, the date, the device and
the processor. If a part fails, its output is kept, and the next run tries it again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from codespec.store.machine import processor

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "gpu"
LIMIT = 570  # maximum seconds of a part
RESERVE = 10  # seconds reserved for the results of the last part
MIN = 60  # minimum seconds left to start a part
COMMIT = "GPU_COMMIT"  # environment variable with the commit of a copy without .git
TAIL = 4000  # characters kept of a failed part's output
WAYS = {"exact": ("--mode", "exact"), "fast": ("--mode", "fast"), "eager": ("--mode", "fast", "--graph-rows", "0")}
TESTS = ("-m", "pytest", "-q", "tests/gpu", "--confcutdir", "tests/gpu")
TUNE = ("-m", "tools.tune_kernels")
FILES = ("--json", "{json}")
STARTER = ("--model", "starter")  # regardless of the pulled models
SHAPES = ("qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-32b")


@dataclass(frozen=True, slots=True)
class Part:
    """One command after `python`; `{json}` is its output file, `{minutes}` is its time.

    `small` are additional arguments for a rehearsal on a CPU. A part is not started with less than `least` seconds
    left, and is killed after `most` seconds.
    """

    name: str
    arguments: tuple[str, ...]
    small: tuple[str, ...] = ()
    least: int = MIN
    most: int = LIMIT


@dataclass(frozen=True, slots=True)
class Budget:
    """Time budget of a whole run, in seconds."""

    seconds: float
    now: Callable[[], float] = time.monotonic
    began: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "began", self.now())

    @property
    def left(self) -> float:
        """Seconds left for parts, without RESERVE."""
        return self.seconds - RESERVE - (self.now() - self.began)


def parts() -> list[Part]:
    """Return all parts in the order in which to run them: the most decisive results per time first."""
    return [
        Part("tests", (*TESTS, "--junitxml", "{json}"), most=5 * MIN),
        _step("qwen2.5-7b", "exact"),
        Part("kernels", (*TUNE, "--json", "{json}", "--minutes", "{minutes}"), ("--rehearse",), most=3 * MIN),
        _decode("qwen2.5-1.5b", "1,8", "greedy"),
        _decode("qwen2.5-7b", "1,8", "greedy"),
        _step("qwen2.5-7b", "fast"),
        _step("qwen2.5-1.5b", "exact"),
        _step("qwen2.5-1.5b", "fast"),
        _decode("qwen2.5-1.5b", "16", "greedy"),
        _decode("qwen2.5-7b", "16", "greedy"),
        _decode("qwen2.5-1.5b", "1,8", "sampled"),
        _decode("qwen2.5-7b", "1,8", "sampled"),
        _step("qwen2.5-7b", "eager"),
        _step("qwen2.5-1.5b", "eager"),
        *(_step("qwen2.5-32b", way) for way in WAYS),
    ]


def _step(shape: str, way: str) -> Part:
    """Return the part that measures the time of a step with 1 to 128 rows."""
    grid = ("--widths", "1,2,4,8,16,32", "--batches", "1,2,4", "--grid", "--sweeps", "5")
    small = ("--shape", "qwen2.5-0.5b", "--widths", "1,4", "--batches", "1", "--contexts", "64", "--sweeps", "1")
    words = ("-m", "codespec_lab", "bench", "step", *STARTER, "--shape", shape, "--dtypes", "bfloat16")
    return Part(f"step-{_size(shape)}-{way}", (*words, *grid, *WAYS[way], *FILES), small)


def _decode(shape: str, together: str, sampling: str) -> Part:
    """Return the part that measures tokens per second, with the starter target enlarged to a large model's cost."""
    flags = ("--concurrency", together, "--sampling", sampling, "--minutes", "{minutes}")
    small = ("--shape", "qwen2.5-0.5b", "--limit", "1", "--tokens", "4", "--concurrency", "1", "--repeats", "1")
    words = ("-m", "codespec_lab", "bench", "decode", *STARTER, "--shape", shape, *flags)
    return Part(
        f"decode-{_size(shape)}-c{together.replace(',', '-')}-{sampling}", (*words, *FILES), small, least=2 * MIN
    )


def _size(shape: str) -> str:
    return shape.removeprefix("qwen2.5-")


@dataclass(frozen=True, slots=True)
class Runner:
    """Runner of parts with this Python on one device, with all results in one folder."""

    device: str
    folder: Path
    rehearsal: bool = False

    def run(self, part: Part, seconds: float = LIMIT) -> bool:
        """Run a part for at most `seconds`, write its result, and return whether it is complete."""
        figures = self.folder / f".{part.name}.raw"
        arguments = self.words(part, seconds)
        command = [text.replace("{json}", str(figures)) for text in arguments]
        print(f"{part.name}: python {' '.join(arguments)}", flush=True)
        began = time.monotonic()
        code, message = _call([sys.executable, *command], _environment(os.environ), seconds)
        found = _read(figures)
        whole = code == 0 and found is not None
        result = {"command": " ".join(["python", *arguments]), "seconds": round(time.monotonic() - began, 1)}
        self.result(part).write_text(
            json.dumps(
                {**result, **facts(self.device), "whole": whole, "message": "" if whole else message, "found": found},
                indent=1,
            )
            + "\n",
            encoding="utf-8",
        )
        if whole:
            figures.unlink()
        print(f"{part.name}: {'done' if whole else f'failed ({code})'} after {result['seconds']} s", flush=True)
        return whole

    def words(self, part: Part, seconds: float = LIMIT) -> list[str]:
        """Return the arguments of `python`, with the file names still to be filled in.

        `{minutes}` is a minute less than the limit, so that the part can stop itself and keep its figures.
        """
        minutes = str(max(1, int(seconds // 60) - 1))
        words = [*part.arguments, *(part.small if self.rehearsal else ())]
        words = [word.replace("{minutes}", minutes) for word in words]
        return [*words, "--device", self.device] if "codespec_lab" in words else words

    def result(self, part: Part) -> Path:
        """Return the path of a part's result."""
        return self.folder / f"{part.name}.json"

    def was_tried(self, part: Part) -> bool:
        """Return whether an earlier run left a result, complete or not."""
        return self.result(part).is_file()

    def is_done(self, part: Part) -> bool:
        """Return whether an earlier run completed the part."""
        file = self.result(part)
        return file.is_file() and bool(json.loads(file.read_text(encoding="utf-8")).get("whole"))


def _call(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> tuple[int, str]:
    """Return a command's exit code and the end of its output; 124 if it and its child processes were killed."""
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **streams) as process:
        try:
            message, code = process.communicate(timeout=seconds)[0], process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            message, code = process.communicate()[0], 124
    return code, message.decode(errors="replace")[-TAIL:]


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the checkout's packages on the path, installed or not."""
    own = [str(ROOT / name) for name in ("", "lsp", "grammars", "lab", "weights")]
    folders = [*own, *given.get("PYTHONPATH", "").split(os.pathsep)]
    return {**given, "PYTHONPATH": os.pathsep.join(folder for folder in folders if folder)}


def _read(file: Path) -> Any:
    """Return figures from JSON, or the counts of a test report; None if there is no file."""
    if not file.is_file():
        return None
    text = file.read_text(encoding="utf-8")
    if not text.lstrip().startswith("<"):
        return json.loads(text)
    suites = list(ElementTree.fromstring(text).iter("testsuite"))
    return {
        name: sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    }


def facts(device: str) -> dict[str, str]:
    """Return commit, date, device and processor of a result."""
    return {
        "commit": os.environ.get(COMMIT) or _head() or "unknown",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": _gpu() if device == "cuda" else device,
        "processor": processor().label,
    }


def _head() -> str:
    """Return the checkout's commit, or "" if it is not a git checkout."""
    if shutil.which("git") is None:
        return ""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip()


def _gpu() -> str:
    """Return the GPU's name, or "" if torch finds none."""
    probe = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True).stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that are not done yet. The exit status is 1 if one failed."""
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--list", action="store_true", help="list the parts and whether each has a result")
    parser.add_argument("--only", default="", metavar="NAME,…", help="run only these parts, even if they have results")
    parser.add_argument("--minutes", type=float, default=1e9, metavar="N", help="finish within this time")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="write results here (docs/gpu)")
    parser.add_argument("--tar", type=Path, metavar="FILE", help="pack all results into this file after every part")
    parser.add_argument("--commit", metavar="NAME", help=f"the commit, for a copy without .git (default ${COMMIT})")
    parser.add_argument("--rehearse", action="store_true", help="run a small version on the CPU")
    options = parser.parse_args(arguments)
    budget = Budget(60 * options.minutes)
    if options.commit:
        os.environ[COMMIT] = options.commit
    runner = Runner("cpu" if options.rehearse else "cuda", options.results, options.rehearse)
    named = set(filter(None, options.only.split(",")))
    unknown = named - {part.name for part in parts()}
    if unknown:
        parser.error(f"no part is called {', '.join(sorted(unknown))}: make gpu lists them with --list")
    take_along(RESULTS, runner.folder)
    if options.list:
        print("\n".join(f"{'done' if runner.is_done(part) else 'open'}  {part.name}" for part in parts()))
        return 0
    if not options.rehearse and not _gpu():
        print("torch finds no GPU: choose a Python whose torch does (make gpu PYTHON=…), or use --rehearse.")
        return 1
    runner.folder.mkdir(parents=True, exist_ok=True)
    wanted = [part for part in parts() if part.name in named or not (named or runner.is_done(part))]
    # Parts that failed or were killed come after untried ones, so that they do not use up every run's time.
    return run_all(runner, sorted(wanted, key=runner.was_tried), budget, options.tar)


def take_along(earlier: Path, folder: Path) -> None:
    """Copy earlier results that are missing in the folder, so that those parts are not run again."""
    for file in earlier.glob("*.json") if folder != earlier else ():
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / file.name).exists():
            shutil.copy2(file, folder)


def run_all(runner: Runner, wanted: Sequence[Part], budget: Budget, tar: Path | None = None) -> int:
    """Run parts while there is time. The exit status is 1 if one failed."""
    failed = 0
    for part in wanted:
        if budget.left < part.least:
            print(f"{part.name}: left for another run, because {max(0, budget.left):.0f} s are not enough")
            continue
        failed += not runner.run(part, min(part.most, budget.left))
        if tar is not None:
            pack(runner.folder, tar)
    return int(failed > 0)


def pack(folder: Path, tar: Path) -> None:
    """Write all results of a folder to one archive, atomically."""
    tar.parent.mkdir(parents=True, exist_ok=True)
    part = tar.with_name(f".{tar.name}.part")
    with tarfile.open(part, "w:gz") as out:
        for file in sorted(folder.glob("*.json")):
            out.add(file, file.name)
    part.replace(tar)


if __name__ == "__main__":
    sys.exit(main())
