"""`make gpu`: the tests and tables that need a GPU, part by part, each in under ten minutes, each gone past where its
result is there already. Knows the list of parts and how to run a command; needs no virtual environment, only a Python
with torch, transformers, tokenizers and pytest.

A part's figures are written by its own command; beside them stand the command, the commit, the date, the device and
the processor. A part that fails leaves what it printed and is tried again by the next run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from codespec.models.processor import processor

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "gpu"
LIMIT = 570  # seconds of a part
TAIL = 4000  # characters kept of what a failed part printed
WAYS = {"exact": ("--mode", "exact"), "fast": ("--mode", "fast"), "eager": ("--mode", "fast", "--graph-rows", "0")}
SHAPES = ("qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-32b")


@dataclass(frozen=True, slots=True)
class Part:
    """One command behind `python`; `{json}` and `{plot}` in it are files of its own. `small`: what a rehearsal on a
    CPU adds.
    """

    name: str
    arguments: tuple[str, ...]
    small: tuple[str, ...] = ()


def parts() -> list[Part]:
    """In the order in which they are run: tests, kernels, steps, whole texts."""
    return [
        Part("tests", ("-m", "pytest", "-q", "tests/gpu", "--confcutdir", "tests/gpu", "--junitxml", "{json}")),
        Part("kernels", ("-m", "tools.tune_kernels", "--json", "{json}"), ("--rehearse",)),
        *_steps(),
        *_decodes(),
    ]


def _steps() -> list[Part]:
    """What a step costs, every width with every batch, graphs on and off."""
    grid = ("--widths", "1,2,4,8,16,32", "--batches", "1,2,4,8,16,32", "--grid", "--sweeps", "5")
    files = ("--json", "{json}", "--plot", "{plot}")
    small = ("--shape", "qwen2.5-0.5b", "--widths", "1,4", "--batches", "1", "--contexts", "64", "--sweeps", "1")
    return [
        Part(
            f"step-{shape.removeprefix('qwen2.5-')}-{way}",
            ("-m", "codespec", "bench", "step", "--shape", shape, "--dtypes", "bfloat16", *grid, *flags, *files),
            small,
        )
        for shape in SHAPES
        for way, flags in WAYS.items()
    ]


def _decodes() -> list[Part]:
    """The headline: everybody's tokens a second, with the starter target at a large model's cost."""
    files = ("--json", "{json}", "--plot", "{plot}", "--minutes", "8")
    small = ("--shape", "qwen2.5-0.5b", "--limit", "1", "--tokens", "4", "--concurrency", "1", "--repeats", "1")
    return [
        Part(
            f"decode-{shape.removeprefix('qwen2.5-')}",
            ("-m", "codespec", "bench", "decode", "--shape", shape, "--concurrency", "1,8,16", *files),
            small,
        )
        for shape in SHAPES[:2]
    ]


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs parts with this Python on one device, results in one folder."""

    device: str
    folder: Path
    rehearsal: bool = False

    def run(self, part: Part) -> bool:
        """Runs a part and writes what it found; whether it is whole."""
        figures, plot = (self.folder / f".{part.name}.raw", self.folder / f"{part.name}.svg")
        arguments = self.words(part)
        command = [text.replace("{json}", str(figures)).replace("{plot}", str(plot)) for text in arguments]
        print(f"{part.name}: python {' '.join(arguments)}", flush=True)
        began = time.monotonic()
        code, said = _call([sys.executable, *command], _environment(os.environ))
        found = _read(figures)
        whole = code == 0 and found is not None
        result = {"command": " ".join(["python", *arguments]), "seconds": round(time.monotonic() - began, 1)}
        self.result(part).write_text(
            json.dumps(
                {**result, **facts(self.device), "whole": whole, "said": "" if whole else said, "found": found},
                indent=1,
            )
            + "\n",
            encoding="utf-8",
        )
        if whole:
            figures.unlink()
        print(f"{part.name}: {'done' if whole else f'failed ({code})'} after {result['seconds']} s", flush=True)
        return whole

    def words(self, part: Part) -> list[str]:
        """What stands behind `python`, the files still unnamed."""
        words = [*part.arguments, *(part.small if self.rehearsal else ())]
        return [*words, "--device", self.device] if "codespec" in words else words

    def result(self, part: Part) -> Path:
        """Where a part's result stands."""
        return self.folder / f"{part.name}.json"

    def is_done(self, part: Part) -> bool:
        """Whether an earlier run found all of it."""
        file = self.result(part)
        return file.is_file() and bool(json.loads(file.read_text(encoding="utf-8")).get("whole"))


def _call(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """A command's exit code and the end of what it said; 124 where it took too long."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT
        )
    except subprocess.TimeoutExpired as error:
        return 124, (error.stdout or b"").decode(errors="replace")[-TAIL:]
    return done.returncode, done.stdout.decode(errors="replace")[-TAIL:]


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """Packages are found in the checkout, installed or not."""
    folders = [str(ROOT), str(ROOT / "lsp"), str(ROOT / "grammars"), *given.get("PYTHONPATH", "").split(os.pathsep)]
    return {**given, "PYTHONPATH": os.pathsep.join(folder for folder in folders if folder)}


def _read(file: Path) -> Any:
    """Figures as JSON; of a test run's report the counts; None where there are none."""
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
    """Commit, date, device and processor of a result."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        "commit": commit.stdout.strip() or "unknown",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": _gpu() if device == "cuda" else device,
        "processor": processor().label,
    }


def _gpu() -> str:
    """The GPU's name; "" where torch finds none."""
    probe = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True).stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is not done yet. The exit status is 1 where something failed."""
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--list", action="store_true", help="say what is done and what is not")
    parser.add_argument("--only", default="", metavar="NAME,…", help="these parts, done or not")
    parser.add_argument("--minutes", type=float, default=1e9, metavar="N", help="begin no part after this")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="(docs/gpu)")
    parser.add_argument("--rehearse", action="store_true", help="small, on the CPU")
    options = parser.parse_args(arguments)
    runner = Runner("cpu" if options.rehearse else "cuda", options.results, options.rehearse)
    named = set(filter(None, options.only.split(",")))
    unknown = named - {part.name for part in parts()}
    if unknown:
        parser.error(f"no part is called {', '.join(sorted(unknown))}: make gpu lists them with --list")
    if options.list:
        print("\n".join(f"{'done' if runner.is_done(part) else 'open'}  {part.name}" for part in parts()))
        return 0
    if not options.rehearse and not _gpu():
        print("torch finds no GPU here: choose a Python that does (make gpu PYTHON=…), or rehearse with --rehearse.")
        return 1
    runner.folder.mkdir(parents=True, exist_ok=True)
    return _run_all(
        runner, [p for p in parts() if p.name in named or not (named or runner.is_done(p))], options.minutes
    )


def _run_all(runner: Runner, wanted: Sequence[Part], minutes: float) -> int:
    began, failed = time.monotonic(), 0
    for part in wanted:
        if time.monotonic() - began > 60 * minutes:
            print(f"{part.name}: left for another run, the time is over")
            continue
        failed += not runner.run(part)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
