"""Run the fuzzers for any length of time: `python -m tools.fuzz --minutes 60 http|rpc|folders`.

The fuzzers are in tests/full. A finding prints the bytes that reproduce it, and the seed that repeats the run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("http", "rpc", "folders")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named fuzzers, or all; return 0 if none found a fault."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description="Tries random input on real processes.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(NAMES)} (default all)")
    parser.add_argument("--minutes", type=float, default=60.0, metavar="N", help="for each (default 60)")
    parser.add_argument("--seed", type=int, metavar="N", help="the seed of an earlier run")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(NAMES))
    if unknown:
        parser.error(f"there is no fuzzer {unknown[0]}: name some of {', '.join(NAMES)}")
    environment = {**os.environ, "FUZZ_MINUTES": str(options.minutes)}
    if options.seed is not None:
        environment["FUZZ_SEED"] = str(options.seed)
    tests = [f"tests/full/test_fuzzers.py::test_{name}" for name in options.names or NAMES]
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-m", "full", *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
