"""Run a benchmark: find its scenario, print the report, and write the files of --json and --summary.

A long benchmark's file grows pass by pass. A later run continues it if configuration and code are unchanged. If texts
differ that must not, the run ends with an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import codespec
from codespec.errors import ConfigError, MismatchError
from codespec_lab.bench.flags import Bench
from codespec_lab.bench.shapes import OWN

PACKAGE = Path(codespec.__file__).parent
UNMEASURED = ("server", "cli")  # parts of the package that no figure depends on
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))  # Windows: one
Contestant = TypeVar("Contestant")
Figures = Mapping[str, Any]


class Results:
    """A long benchmark's figures in sections, kept in `file` if given."""

    def __init__(self, file: Path | None, bench: str) -> None:
        self.file = file
        self.values: dict[str, Any] = {"bench": bench, "sections": {}}
        if file is not None and file.exists():
            self.values = _read(file, bench)

    def section(self, name: str, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """Return the section `name`, new or from an earlier run. Raise ConfigError if that run had another
        configuration or code.
        """
        code = code_digest()
        new = {"configuration": dict(configuration), "code": code, "passes": []}
        found: dict[str, Any] = self.values["sections"].setdefault(name, new)
        before = {**found["configuration"], "code": found["code"]}
        now = json.loads(json.dumps({**configuration, "code": code}))
        changed = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
        if changed:
            raise ConfigError(
                f"{self.file} holds figures of {name} that were measured with another {', '.join(changed)}: name "
                "another --json file, or delete this one."
            )
        return found

    def write(self) -> None:
        """Replace the file. Raise ConfigError if it can't be written."""
        if self.file is not None:
            write_json(self.file, self.values, indent=None)


class Deadline:
    """The moment `minutes` from now; never if None."""

    def __init__(self, minutes: float | None) -> None:
        self._end = float("inf") if minutes is None else time.monotonic() + 60 * minutes

    def too_late(self, seconds: float) -> bool:
        """Return whether work that takes `seconds` would end after the deadline."""
        return time.monotonic() + seconds > self._end


def write_json(file: Path, values: Mapping[str, Any], *, indent: int | None = 1) -> None:
    """Write figures into a file; a regular one is replaced atomically, so that an interruption leaves the last complete
    state. Raise ConfigError if it can't be written.
    """
    text = json.dumps(values, indent=indent) + "\n"
    in_place = file.is_symlink() or (file.exists() and not file.is_file())  # such as /dev/stdout
    written = file if in_place else file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(text, encoding="utf-8")
        written.replace(file)
    except OSError as error:
        if not in_place:
            with suppress(OSError):
                written.unlink()
        message = f"The figures can't be written to {file} ({error.strerror}): choose another place."
        raise ConfigError(message) from error


def condensed(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures as stored in documents: without the passes, with four digits each."""
    kept = {name: _without_passes(value) if name == "sections" else value for name, value in found.items()}
    rounded: dict[str, Any] = _rounded(kept)
    return rounded


def refuse_mismatches(found: Sequence[str]) -> None:
    """Raise MismatchError if `found` has entries; each names a text that differs. In `exact` mode speculation does not
    change the text, so a difference is a bug in codespec.
    """
    if found:
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        raise MismatchError(
            f"A text differs from plain decoding, which exact mode rules out ({found[0]}{more}): report it with the "
            "output of `codespec doctor`."
        )


def first_difference(ids: Sequence[int], plain: Sequence[int]) -> int | None:
    """Return the first position at which two texts differ; None if they are equal."""
    if tuple(ids) == tuple(plain):
        return None
    pairs = zip(ids, plain, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(plain)))


def code_digest() -> str:
    """Return a digest of the code that figures depend on: a commit may change documentation only, or be missing."""
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(PACKAGE.rglob("*.py")):
        inside = file.relative_to(PACKAGE)
        if inside.parts[0] not in UNMEASURED:
            digest.update(f"{inside.as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def commit_name() -> str:
    """Return the checkout's commit, with a "+" if files differ from it; "" without a checkout."""
    words = ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _read(file: Path, bench: str) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if values["bench"] != bench or not isinstance(values["sections"], dict):
            raise ValueError("other figures")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{file} holds no figures of `codespec bench {bench}` ({error}): name another --json file."
        ) from error
    return values


def _without_passes(sections: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {key: value for key, value in section.items() if key != "passes"} for name, section in sections.items()
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(inside) for key, inside in value.items()}
    return [_rounded(inside) for inside in value] if isinstance(value, list | tuple) else value


def _none(found: Figures) -> list[Any]:
    return []


@dataclass(frozen=True, slots=True)
class Scenario:
    """The parts of a benchmark.

    run         turn the settings into figures (plain JSON values)
    report      format the figures as lines
    mismatches  name every text that differs from plain decoding and must not
    """

    run: Callable[[Any], dict[str, Any]]
    report: Callable[[Figures], list[str]]
    mismatches: Callable[[Figures], list[str]] = _none


def carry_out(bench: Bench, summary: Path | None) -> int:
    """Run a benchmark, print its report and write its files. Return 0, or raise MismatchError if a text differs."""
    scenario: Scenario = import_module(f"codespec_lab.bench.{bench.module}").SCENARIO
    json = None if bench.grows else bench.file
    from codespec_lab.bench.enlarge import enlarged  # with torch

    with leaving_on_signals(), enlarged(bench.config, getattr(bench, "target_shape", OWN)) as config:
        found = scenario.run(replace(bench, config=config))
    return publish(scenario, found, json=json, summary=summary)


@contextmanager
def leaving_on_signals() -> Iterator[None]:
    """Turn a signal that ends the process into SystemExit while the block runs, so that every server or program that it
    started is stopped as after an error. Later signals are ignored, for that takes a while.
    """

    def leave(number: int, _frame: object) -> None:
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in ENDING if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def publish(scenario: Scenario, found: dict[str, Any], *, json: Path | None, summary: Path | None) -> int:
    """Print the report and write the files. Return 0, or raise MismatchError if a text differs."""
    print("\n".join(scenario.report(found)))
    if json:
        write_json(json, found)
    if summary:
        write_json(summary, condensed(found))
    refuse_mismatches(scenario.mismatches(found))
    return 0


def in_turn(contestants: Sequence[Contestant], turn: int) -> list[Contestant]:
    """Return the contestants in the order of a turn: another one begins each time, so that a busy minute of the machine
    affects all of them.
    """
    first = turn % max(1, len(contestants))
    return [*contestants[first:], *contestants[:first]]
