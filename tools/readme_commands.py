"""Runs the commands that a page promises, as a user would: in a fresh clone, one after the other.

A fenced `sh` block counts if the line before it is `<!-- e2e -->`, or `<!-- e2e exit=2 -->` for commands that must
fail with one sentence. Each line is a command; a trailing backslash joins the next line; `#` lines and a leading `$
` are for the reader. A `codespec complete` that succeeds must have completed something.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_MARK = re.compile(r"<!--\s*e2e(?:\s+exit=(\d+))?\s*-->")
_FENCE = re.compile(r"(`{3,})\s*sh\s*")
# Printed after the text of `complete --show-draft`: a line for each round, then the total.
_ROUNDS = re.compile(r"^(?: *\d+  \d+/\d+  .*|\d+ tokens in \d+ rounds, .*)$", re.MULTILINE)
_REJECTED = re.compile(r"-.*?-")
COMMAND_SECONDS = 1800


class PageError(Exception):
    """Raised with one sentence for a page that cannot be run."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command line and its expected exit code."""

    line: str
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a command; `fault` is empty if it is as promised."""

    exit_code: int
    stdout: str
    stderr: str
    fault: str = ""


def commands(page: str) -> list[Command]:
    """Return the commands of all marked blocks, in the page's order."""
    lines = page.splitlines()
    found: list[Command] = []
    for number, line in enumerate(lines):
        mark = _MARK.fullmatch(line.strip())
        if mark:
            exit_code = int(mark.group(1) or 0)
            found += [Command(text, exit_code) for text in _join(_block(lines, number + 1))]
    return found


def _block(lines: Sequence[str], start: int) -> Iterator[str]:
    """Yield the lines inside the fence that opens at `start`."""
    fence = _FENCE.fullmatch(lines[start].strip()) if start < len(lines) else None
    if not fence:
        raise PageError(f"line {start + 1}: an e2e mark must stand right before a ```sh block.")
    for line in lines[start + 1 :]:
        if line.strip() == fence.group(1):
            return
        yield line
    raise PageError(f"line {start + 1}: this ```sh block is never closed.")


def _join(lines: Iterator[str]) -> Iterator[str]:
    """Yield whole commands: continued lines joined, comments and blank lines dropped."""
    begun = ""
    for line in lines:
        text = begun + line.strip().removeprefix("$ ")
        if text.endswith("\\"):
            begun = text[:-1].rstrip() + " "
            continue
        begun = ""
        if text and not text.startswith("#"):
            yield text
    if begun:
        raise PageError(f"`{begun.strip()} \\` is continued, but its block ends.")


def judge(command: Command, outcome: Outcome) -> str:
    """Return the fault of an outcome in a few words, or "" if it is as promised."""
    if "Traceback (most recent call last)" in outcome.stderr + outcome.stdout:
        return "a traceback"
    if outcome.exit_code != command.exit_code:
        return f"exit code {outcome.exit_code}, not {command.exit_code}"
    message = [line for line in outcome.stderr.splitlines() if line.strip()]
    if command.exit_code and len(message) != 1:
        return f"{len(message)} lines on stderr, not one sentence"
    words = shlex.split(command.line, comments=True)
    if not command.exit_code and "complete" in words[1:2] and Path(words[0]).name == "codespec":
        return "" if _completed(words, outcome.stdout).strip() else "nothing was completed"
    return ""


def _completed(words: Sequence[str], stdout: str) -> str:
    """Return the text that `codespec complete` wrote, as far as its output shows it."""
    if "--json" in words:
        return str(json.loads(stdout or "{}").get("text", ""))
    if "--show-draft" in words:
        found = _ROUNDS.search(stdout)
        return _REJECTED.sub("", stdout[: found.start()] if found else stdout).replace("[", "").replace("]", "")
    return stdout


def run(command: Command, folder: Path, seconds: float = COMMAND_SECONDS) -> Outcome:
    """Run one command with `sh` in `folder`; kill the whole process group after `seconds`."""
    process = subprocess.Popen(
        ["sh", "-c", command.line],
        cwd=folder,
        env=user_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        return Outcome(process.returncode, stdout, stderr, f"not done after {seconds:.0f} s")
    outcome = Outcome(process.returncode, stdout, stderr)
    return Outcome(process.returncode, stdout, stderr, judge(command, outcome))


def user_environment() -> dict[str, str]:
    """Return the environment without variables set by make and an active venv, like a user's shell."""
    ours = ("VIRTUAL_ENV", "PYTHONPATH", "MFLAGS")
    return {name: value for name, value in os.environ.items() if name not in ours and name[:4] != "MAKE"}


def clone(repository: Path, folder: Path) -> None:
    """Clone HEAD of `repository` into `folder`."""
    done = subprocess.run(["git", "clone", "--quiet", str(repository), str(folder)], capture_output=True, text=True)
    if done.returncode:
        raise PageError(f"git clone failed: {done.stderr.strip()}")


def run_all(todo: Sequence[Command], folder: Path) -> int:
    """Run all commands, print a line for each and a summary, and return the number of failures."""
    failed = 0
    for command in todo:
        start = time.monotonic()
        outcome = run(command, folder)
        verdict = "FAILED" if outcome.fault else "ok"
        print(f"{verdict:6} {time.monotonic() - start:6.1f} s  {command.line}", flush=True)
        if outcome.fault:
            failed += 1
            print(f"  {outcome.fault}; its output ends:\n{_tail(outcome)}", flush=True)
    print(f"{len(todo) - failed} passed, {failed} failed")
    return failed


def _tail(outcome: Outcome, lines: int = 40) -> str:
    """Return the last lines of both streams, indented."""
    text = (outcome.stdout + outcome.stderr).splitlines()[-lines:]
    return "\n".join(f"    {line}" for line in text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return exit code 0 if every command did as promised; 1 otherwise, also if no page has a marked block."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("pages", nargs="+", type=Path, help="Markdown pages, relative to the repository")
    parser.add_argument("--repository", type=Path, default=Path.cwd())
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="codespec-e2e-") as folder:
            checkout = Path(folder) / "codespec"
            clone(options.repository, checkout)
            todo = [command for page in options.pages for command in commands(_read(checkout / page))]
            if not todo:
                raise PageError("no page has a block marked `<!-- e2e -->`.")
            return 1 if run_all(todo, checkout) else 0
    except PageError as error:
        print(f"e2e: {error}", file=sys.stderr)
        return 1


def _read(page: Path) -> str:
    """Return the text of a page in the clone, which contains committed files only."""
    if not page.is_file():
        raise PageError(f"{page.name} is not in HEAD: commit it first.")
    return page.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
