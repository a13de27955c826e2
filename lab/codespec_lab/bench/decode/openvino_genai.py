"""OpenVINO GenAI as a contestant: folders converted from the target by `optimum-cli export openvino`, in int8 or int4,
each plain, with prompt lookup, and with a draft model.

The package has a separate environment, so each contestant is a process of that Python, one at a time. It takes one
prompt at a time. The protocol is in `openvino_child`.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from codespec.errors import ConfigError
from codespec_lab.bench.decode import openvino_child
from codespec_lab.bench.decode.codespec_engine import FAMILY as OWN
from codespec_lab.bench.decode.contest import (
    Answer,
    Contestant,
    Family,
    PeerError,
    Task,
    Variant,
    Workload,
    cut_at_end,
    join_answers,
    thread_counts,
)
from codespec_lab.bench.peer_packages import PeerPackage

FAMILY = "OpenVINO"
PACKAGE = PeerPackage("openvino-genai", "2026.4.1.0", "openvino_genai")
LOOKUP, DRAFT = "prompt lookup", "draft model"
LOOKUPS = ((3, 5), (2, 10))  # (length of the n-gram to match, ids drafted)
DRAFT_TOKENS = (3, 5)  # per round
STOP_SECONDS, LAST_SECONDS = 10.0, 2.0  # for a process to end: after a request to stop, and after a failure


@dataclass(frozen=True, slots=True)
class Exported:
    """A folder with a converted model, and its name, which gives the format of the weights."""

    folder: Path
    kind: str


class OpenVinoContestant(Contestant):
    """One way to run a converted folder: `way` is "" (plain), LOOKUP or DRAFT."""

    batched = False

    def __init__(self, python: Path, model: Exported, way: str, drafter: Exported | None) -> None:
        self.name = f"{FAMILY} {model.kind} {way}".strip()
        self.family = f"{FAMILY} {model.kind}"  # its texts are compared with the plain texts of the same weights
        self.plain = not way
        self.reference = OWN if self.plain else self.family
        self._python, self._model, self._way, self._drafter = python, model, way, drafter
        self._process: Process | None = None
        self._variant: Variant | None = None

    def variants(self) -> list[Variant]:
        """Return all combinations of threads and draft lengths per round."""
        options = {"": 1, LOOKUP: len(LOOKUPS), DRAFT: len(DRAFT_TOKENS)}[self._way]
        drafter = self._drafter.kind if self._drafter and self._way == DRAFT else ""
        ways = product(thread_counts(), range(options))
        return [Variant(self._model.kind, drafter, threads, option) for threads, option in ways]

    def facts(self, variant: Variant) -> dict[str, Any]:
        """Return the package and the options in use."""
        settings = self._settings(variant)
        named = {name: settings[name] for name in ("ngram", "draft_tokens") if settings[name]}
        return {"program": f"{PACKAGE.name} {PACKAGE.installed_version() or PACKAGE.version}", **named}

    def answer(self, work: Workload, variant: Variant) -> Answer:
        """Decode the prompts one after another. Raise PeerError if the process fails."""
        if self._process is None or self._variant != variant or not self._process.alive:
            self.close()
            self._process, self._variant = Process(self._python, self._settings(variant)), variant
        process = self._process
        return join_answers(replace(work, at_once=1).parts(), lambda part: _decode(process, part.tasks[0], part))

    def close(self) -> None:
        """Stop the process."""
        if self._process is not None:
            self._process.stop()
        self._process = None

    def _settings(self, variant: Variant) -> dict[str, Any]:
        ngram, tokens = LOOKUPS[variant.option] if self._way == LOOKUP else (0, 0)
        tokens = DRAFT_TOKENS[variant.option] if self._way == DRAFT else tokens
        drafter = str(self._drafter.folder) if self._drafter and self._way == DRAFT else ""
        folder = str(self._model.folder)
        return {
            "folder": folder,
            "drafter": drafter,
            "threads": variant.threads,
            "ngram": ngram,
            "draft_tokens": tokens,
        }


class OpenVinoFamily(Family):
    """The contestants of the converted folders, or the reason why they are absent."""

    name = FAMILY

    def __init__(self, device: str, folders: Sequence[Path], drafter: Path | None) -> None:
        self.absent = {}
        self._own: list[OpenVinoContestant] = []
        python = PACKAGE.python()
        reason = "" if folders else "name a converted folder by --openvino"
        reason = reason or ("" if python else PACKAGE.missing)
        reason = reason or ("" if device == "cpu" else "it takes part beside a CPU only")
        if reason or python is None:
            self.absent = {FAMILY: reason}
        else:
            draft = read_exported(drafter) if drafter else None
            ways = ("", LOOKUP, *([DRAFT] if draft else []))
            models = [read_exported(folder) for folder in folders]
            self._own = [OpenVinoContestant(python, model, way, draft) for model in models for way in ways]
        self.contestants = self._own

    def close(self) -> None:
        """Stop all processes."""
        for contestant in self._own:
            contestant.close()


class Process:
    """A Python process with OpenVINO and a loaded model. Raises PeerError if loading fails."""

    def __init__(self, python: Path, settings: Mapping[str, Any]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by stop)
        words = [str(python), "-P", str(Path(openvino_child.__file__))]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log)
        try:
            self.ask(settings)
        except PeerError:
            self.stop()
            raise

    @property
    def alive(self) -> bool:
        """Return whether the process is running."""
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            found: dict[str, Any] = json.loads(self._process.stdout.readline())
            return found
        except (OSError, ValueError) as error:
            status = self._end(LAST_SECONDS)
            self._log.seek(0)
            why = _reason(self._log.read().decode(errors="replace"))
            why = f" ({why[:200]})" if why else ""
            raise PeerError(f"OpenVINO GenAI breaks off with status {status}{why}") from error

    def stop(self) -> None:
        """Stop the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.terminate()
        self._end(STOP_SECONDS)
        with suppress(OSError):  # a request that was never read
            self._process.stdin.close()
        self._process.stdout.close()
        self._log.close()

    def _end(self, seconds: float) -> int:
        """Wait for a process to exit, kill it after `seconds`, and return the exit status."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def read_exported(folder: Path) -> Exported:
    """Return a converted folder. Its files do not record the format of the weights, so the folder's name must."""
    if not (folder / "openvino_model.xml").is_file():
        raise ConfigError(f"{folder} holds no openvino_model.xml: name a folder that optimum-cli has converted.")
    return Exported(folder, folder.resolve().name)


def _reason(log: str) -> str:
    """Return the line that explains why Python ended: its fatal error, or else the last line (the exception)."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith("Fatal Python error")]
    return (fatal or lines or [""])[-1]


def _decode(process: Process, task: Task, work: Workload) -> Answer:
    """Decode one text. Its first round is the prompt's."""
    request = {"ids": task.ids, "tokens": work.tokens, "temperature": work.temperature, "seed": task.number}
    found = process.ask({**request, "ends": sorted(work.ends)})
    ids = cut_at_end(found["ids"], work.ends)
    if not ids or not found["rounds"]:
        raise PeerError("OpenVINO GenAI wrote no token")
    first_seconds, first = found["rounds"][0]
    later, rounds = len(ids) - len(first), len(found["rounds"]) - 1
    return Answer([ids], found["seconds"], first_seconds, len(first), rounds, 0, max(0, later - rounds))
