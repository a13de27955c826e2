"""`make mutants`: plant faults in a copy of this checkout, one at a time, and list those that no test detects.

The faults of planted_faults.toml come first, each with its own tests. A seeded sample of generated faults from each
room follows, run against the tests that name the faulty module and then against all tests of the room. Caught faults
are remembered in .out/mutants.jsonl until their file changes. Survivors are tried again by the next run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from queue import SimpleQueue

from tools.mutant_report import write_report
from tools.mutations import Mutant, find_mutants
from tools.tree_copy import Copy, CopyError

ROOT = Path(__file__).resolve().parent.parent
PLANTED = ROOT / "tools" / "planted_faults.toml"
JUDGED = ROOT / "tools" / "judged_faults.toml"
KNOWN = ROOT / ".out" / "mutants.jsonl"
ROOMS = {
    "server": ("codespec/server", "tests/server"),
    "lsp": ("lsp/codespec_lsp", "tests/lsp"),
    "engine": ("codespec/engine", "tests/engine"),
    "startup": ("codespec/startup", "tests/startup"),
    "verify": ("codespec/verify", "tests/verify"),
    "client": ("codespec/client", "tests/client"),
}
SAMPLE = 50  # generated faults per room
LEAST_SECONDS, TIMES_AS_LONG = 120, 4  # seconds; a longer run than LEAST_SECONDS + TIMES_AS_LONG * usual hangs
WHOLE_SECONDS = 7200  # for one run of all tests without a fault


class MutantsError(Exception):
    """Raised with one sentence if faults cannot be tried."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A file's text with a fault in it, and the tests that may detect it, likeliest first."""

    room: str
    name: str
    file: str
    line: int
    text: bytes
    tests: tuple[tuple[str, ...], ...]

    @property
    def key(self) -> str:
        """Hash that identifies the same fault in the same file."""
        return hashlib.sha256(self.file.encode() + b"\0" + self.text).hexdigest()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a fault: the test that caught it, or "" if none did."""

    room: str
    name: str
    file: str
    line: int
    caught_by: str
    seconds: float


def planted_faults(words: str = "") -> list[Fault]:
    """Return the faults of the table, in its order.

    Raises MutantsError for a fault whose text does not occur exactly once in its file.
    """
    found = []
    for entry in tomllib.loads(PLANTED.read_text(encoding="utf-8"))["fault"]:
        name, file, before = entry["name"], entry["file"], entry["before"]
        source = (ROOT / file).read_text(encoding="utf-8")
        if source.count(before) != 1:
            raise MutantsError(f"{file} does not contain the text of {name!r} exactly once: correct {PLANTED.name}.")
        line = source[: source.index(before)].count("\n") + 1
        text = source.replace(before, entry["after"]).encode()
        found.append(Fault("planted", name, file, line, text, (tuple(entry["tests"]),)))
    return [fault for fault in found if re.search(words, fault.name)]


def sampled_faults(room: str, count: int, seed: int) -> list[Fault]:
    """Return `count` faults of a room, chosen by the seed."""
    sources, _ = ROOMS[room]
    files = {str(path.relative_to(ROOT)): path.read_bytes() for path in sorted((ROOT / sources).rglob("*.py"))}
    every = [mutant for file, source in files.items() for mutant in find_mutants(file, source)]
    random.Random(f"{seed} {room}").shuffle(every)
    chosen = islice((mutant for mutant in every if mutant.compiles(files[mutant.file])), count)
    return [_generated(room, mutant, files[mutant.file]) for mutant in chosen]


def _generated(room: str, mutant: Mutant, source: bytes) -> Fault:
    tests = tuple(filter(None, near_tests(room, mutant.file)))
    return Fault(room, mutant.name, mutant.file, mutant.line, mutant.planted(source), tests)


def near_tests(room: str, file: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a room's test files: those named after a module or mentioning it, and the others."""
    sources, folder = ROOMS[room]
    module = ".".join(Path(file).relative_to(Path(sources).parent).with_suffix("").parts)
    module = module if room == "lsp" else f"codespec.{module}"
    parent, _, stem = module.rpartition(".")
    named = re.compile(rf"\b{re.escape(module)}\b|\b{re.escape(parent)} import [^\n]*\b{stem}\b")
    near: list[str] = []
    rest: list[str] = []
    for path in sorted((ROOT / folder).rglob("test_*.py")):
        called = path.stem.removeprefix("test_").startswith(stem)
        is_near = called or named.search(path.read_text(encoding="utf-8"))
        (near if is_near else rest).append(str(path.relative_to(ROOT)))
    return tuple(near), tuple(rest)


def judged_faults() -> dict[tuple[str, int, str], str]:
    """Return why no test can detect a fault, by its file, line and name.

    Raises MutantsError for a fault whose line does not occur exactly once.
    """
    found = {}
    for entry in tomllib.loads(JUDGED.read_text(encoding="utf-8"))["fault"]:
        source = (ROOT / entry["file"]).read_text(encoding="utf-8").splitlines()
        lines = [number for number, line in enumerate(source, 1) if entry["line"] in line]
        if len(lines) != 1:
            raise MutantsError(
                f"{entry['file']} does not contain {entry['line']!r} exactly once: correct {JUDGED.name}."
            )
        found[entry["file"], lines[0], entry["name"]] = entry["why"]
    return found


class Runner:
    """Pool of copies of the checkout, each testing one fault at a time."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self._pool = ThreadPoolExecutor(jobs)
        self._usual: dict[str, float] = {}
        self._copies = [Copy(ROOT, folder / str(number)) for number in range(jobs)]
        self._free: SimpleQueue[Copy] = SimpleQueue()
        for copy in self._copies:
            self._free.put(copy)

    def check(self, faults: Sequence[Fault]) -> None:
        """Run all needed tests without a fault. Raises MutantsError if one fails."""
        tests = sorted({file for fault in faults for group in fault.tests for file in group})
        shares = filter(None, (tests[number :: len(self._copies)] for number in range(len(self._copies))))
        for failed, seconds in self._pool.map(
            lambda copy, share: copy.first_failure(share, WHOLE_SECONDS), self._copies, shares
        ):
            if failed:
                raise MutantsError(f"{failed} fails without a planted fault: fix it first.")
            self._usual |= seconds

    def judge(self, faults: Sequence[Fault], end: float) -> Iterator[tuple[Fault, Verdict]]:
        """Yield the verdicts of faults started before `end`, as they are decided."""
        futures = {self._pool.submit(self._try, fault, end): fault for fault in faults}
        try:
            for future in as_completed(futures):
                verdict = future.result()
                if verdict is not None:
                    yield futures[future], verdict
        except BaseException:  # an interrupt too: do not wait for tests
            for copy in self._copies:
                copy.stop()
            raise
        finally:
            self._pool.shutdown(cancel_futures=True)

    def _seconds(self, file: str) -> float:
        """Return the duration of a file's tests without a fault."""
        return self._usual.get(file, 0.0)

    def _try(self, fault: Fault, end: float) -> Verdict | None:
        begun, caught = time.monotonic(), ""
        if begun > end:
            return None
        copy = self._free.get()
        with copy.planted(fault.file, fault.text):
            for group in fault.tests:
                tests = sorted(group, key=self._seconds)
                usual = sum(map(self._seconds, tests))
                caught, _ = copy.first_failure(tests, LEAST_SECONDS + TIMES_AS_LONG * usual)
                if caught:
                    break
        self._free.put(copy)
        seconds = round(time.monotonic() - begun, 1)
        return Verdict(fault.room, fault.name, fault.file, fault.line, caught, seconds)


def known_verdicts(faults: Sequence[Fault]) -> dict[str, Verdict]:
    """Return the verdicts of faults that earlier runs caught, by the faults' keys."""
    lines = KNOWN.read_text(encoding="utf-8").splitlines() if KNOWN.exists() else []
    kept = {entry.pop("key"): Verdict(**entry) for entry in map(json.loads, lines)}
    return {
        fault.key: replace(kept[fault.key], room=fault.room, name=fault.name, line=fault.line)
        for fault in faults
        if fault.key in kept
    }


def run(faults: Sequence[Fault], jobs: int, minutes: float) -> list[Verdict]:
    """Return the verdicts, printing each as it is decided; with `minutes`, only those reached in time."""
    known = known_verdicts(faults)
    new = [fault for fault in faults if fault.key not in known]
    print(f"mutants: {len(faults)} faults, {len(known)} of them caught by earlier runs", flush=True)
    if new:
        end = time.monotonic() + 60 * minutes if minutes else float("inf")
        with tempfile.TemporaryDirectory(prefix="codespec-mutants-") as folder:
            runner = Runner(Path(folder), jobs)
            runner.check(new)
            for fault, verdict in runner.judge(new, end):
                known[fault.key] = verdict
                _tell(fault, verdict)
    found = [known[fault.key] for fault in faults if fault.key in known]
    if len(found) < len(faults):
        print(f"mutants: the time is up, and {len(faults) - len(found)} faults were not tried", flush=True)
    return found


def _tell(fault: Fault, verdict: Verdict) -> None:
    said = f"caught by {verdict.caught_by}" if verdict.caught_by else "SURVIVED"
    print(f"{verdict.seconds:6.1f} s  {verdict.file}:{verdict.line}  {verdict.name}  {said}", flush=True)
    if verdict.caught_by:
        KNOWN.parent.mkdir(exist_ok=True)
        with KNOWN.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": fault.key, **asdict(verdict)}) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--planted", metavar="WORDS", default="", help="use only planted faults with matching names")
    parser.add_argument("--sample", type=int, default=SAMPLE, metavar="N", help="generated faults per room (0: none)")
    parser.add_argument("--rooms", default=",".join(ROOMS), help="rooms to generate faults in")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of copies that run tests in parallel")
    parser.add_argument("--minutes", type=float, default=0.0, help="start no fault after this time (0: no limit)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the report to FILE, and as Markdown next to it"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Return exit code 0 if every planted fault is caught, whatever the share of the sample; 1 otherwise."""
    options = _parser().parse_args(arguments)
    try:
        faults = planted_faults(options.planted)
        judged = judged_faults()
        rooms = [sampled_faults(room, options.sample, options.seed) for room in options.rooms.split(",") if room]
        # interleave the rooms, so that a time limit covers all of them
        faults += [fault for turn in zip_longest(*rooms) for fault in turn if fault]
        verdicts = run(faults, options.jobs, options.minutes)
    except (MutantsError, CopyError) as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mutants: interrupted; the next run skips the faults caught so far.", file=sys.stderr)
        return 130
    if options.json:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        head = {"seed": options.seed, "commit": commit.stdout.strip(), "date": time.strftime("%Y-%m-%d")}
        write_report(options.json, head, [asdict(verdict) for verdict in verdicts], judged)
    survivors = [verdict for verdict in verdicts if not verdict.caught_by]
    print(f"{len(verdicts) - len(survivors)} caught, {len(survivors)} survived")
    return 1 if any(verdict.room == "planted" for verdict in survivors) else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
