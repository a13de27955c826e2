"""Audit exact mode: decode a share of the finished completions again without drafts and compare the results.

If they differ, the audit writes a file that reproduces the difference, logs a warning without source text, and switches
the engine to fast mode.

An audit may reuse the cached prompt, so it checks the decoding, not the prefill. The dispatcher starts and interrupts
audits.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codespec import __version__, json_store
from codespec.contract.types import Completion, CompletionRequest, DoneEvent
from codespec.engine.queue import Job, Priority
from codespec.sequence import Sequence
from codespec.server.logs import log
from codespec.store.processor import processor
from codespec.user_folders import make_state_folder, state_folder

if TYPE_CHECKING:
    from codespec.engine.engine import Engine

MOST_PENDING, MOST_BYTES = 2, 4 << 20  # number of pending audits, and total bytes of their texts
TRIES = 3  # interruptions before an audit is abandoned
QUIET = 1.0  # idle seconds before an audit begins
MOST_FILES = 20
NONE_YET = {"same": 0, "different": 0, "abandoned": 0}
REASON = "a completion with drafts differs from plain decoding"


class Audit:
    """Audits every `every`-th completion that used drafts (0: none) while the engine is in exact mode.

    `results` may be read from another thread. `names` are the models' names for the report file.
    """

    def __init__(self, engine: Engine, every: int = 0, names: Mapping[str, str] | None = None) -> None:
        self.engine = engine
        self.every = every
        self.names = names or {}
        self.results = Counter(NONE_YET)
        self._seen = 0
        self._pending: deque[Job] = deque()  # finished jobs to decode again; the first one may be running
        self._tries = 0  # interruptions of the first one
        self._not_before = 0.0

    @property
    def num_pending(self) -> int:
        """Number of completions that wait for idle time."""
        return len(self._pending)

    @property
    def due(self) -> float | None:
        """The earliest start of the next audit, in seconds of perf_counter, or None if none is pending."""
        return self._not_before if self._pending else None

    def put_off(self, now: float) -> None:
        """Restart the wait for idle time, because there is other work."""
        self._not_before = now + QUIET

    def consider(self, job: Job) -> None:
        """Queue every `every`-th eligible job for an audit."""
        if not self.every or self.engine.mode != "exact" or not is_eligible(job):
            return
        self._seen += 1
        if self._seen % self.every:
            return
        taken = sum(size_of(other.request) for other in self._pending)
        if len(self._pending) < MOST_PENDING and taken + size_of(job.request) <= MOST_BYTES:
            self._pending.append(job)
        else:
            self.results["abandoned"] += 1

    def begin(self, now: float) -> Job:
        """Return the job of the next audit."""
        first = self._pending[0]
        return Job(first.request, Priority.AUDIT, now, audited=first.sequences)

    def interrupt(self) -> None:
        """Record that a request stopped the current audit. It runs again, or is abandoned after TRIES interruptions."""
        self._tries += 1
        if self._tries == TRIES:
            self.give_up()

    def give_up(self) -> None:
        """Abandon the current audit."""
        self._take()
        self.results["abandoned"] += 1

    def judge(self, job: Job) -> None:
        """Compare the finished job's output with that of the first run."""
        first_run = self._take()
        pairs = [(first, completions_of(job)[choice]) for choice, first in sorted(completions_of(first_run).items())]
        if all(outcome(first) == outcome(plain) for first, plain in pairs):
            self.results["same"] += 1
            return
        self._pending.clear()
        file = self._keep({**self._circumstances(), **report(first_run.sequences[0], pairs)})
        self.engine.leave_exact(REASON)
        log.warning("exact mode does not hold here (%s): the daemon now uses fast mode; %s", REASON, file)
        self.results["different"] += 1  # last, so that other threads that see it also see fast mode and the file

    def _take(self) -> Job:
        self._tries = 0
        return self._pending.popleft()

    def _keep(self, content: Mapping[str, Any]) -> str:
        """Write the report file; return its description for the log."""
        folder = state_folder() / "audit"
        file = folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{time.time_ns() % 10**9:09}.json"
        try:
            make_state_folder()
            folder.mkdir(mode=0o700, exist_ok=True)
            folder.chmod(0o700)  # an existing folder may be readable by others
            json_store.write(file, content)  # readable by this user alone, as all temporary files are
            remove_oldest(folder)
        except OSError as error:
            return f"its report can't be written to {folder} ({error.strerror})"
        return f"{file} reproduces the difference, and contains the request's text"

    def _circumstances(self) -> dict[str, Any]:
        import torch

        target = self.engine.target
        return {
            **self.names,
            "codespec": __version__,
            "torch": torch.__version__,
            "device": str(target.device),
            "dtype": str(target.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "processor": processor().label,
            "kernel": self.engine.kernel,
            "notes": list(self.engine.notes),
        }


def is_eligible(job: Job) -> bool:
    """Return whether plain decoding must produce the same output as this finished job.

    No choice may have hit a time limit, drafts must have been used, and exact mode must guarantee the text itself, not
    only its distribution.
    """
    done = completions_of(job).values()
    ended = all(completion.finish_reason in ("stop", "length") for completion in done)
    return ended and job.request.rule == "match" and any(completion.stats.drafted for completion in done)


def completions_of(job: Job) -> dict[int, Completion]:
    """Return a job's completions by choice; for a job that was restarted, those of the last run."""
    return {event.choice: event.completion for event in job.events if isinstance(event, DoneEvent)}


def outcome(completion: Completion) -> tuple[tuple[int, ...], str, str]:
    """Return the parts of a completion that must not depend on drafts."""
    return completion.token_ids, completion.text, completion.finish_reason


def size_of(request: CompletionRequest) -> int:
    """Return the size of a request in bytes: its texts in UTF-8, and eight bytes for each id."""
    texts = (request.prefix, request.suffix, request.prediction, *(snippet.text for snippet in request.snippets))
    return sum(len(text.encode()) for text in texts) + 8 * len(request.prompt_ids)


def report(sequence: Sequence, pairs: list[tuple[Completion, Completion]]) -> dict[str, Any]:
    """Return the request, the output of both runs, and the position of the first difference."""
    choices = [
        {
            "choice": first.choice,
            "first_different_token": first_difference(first.token_ids, plain.token_ids),
            "first_different_character": first_difference(first.text, plain.text),
            "with_drafts": _written(first),
            "plain": _written(plain),
        }
        for first, plain in pairs
    ]
    prompt = {"prompt_ids": sequence.prompt_ids, "held": sequence.held.decode("utf-8", "backslashreplace")}
    return {"request": asdict(sequence.request), **prompt, "choices": choices}


def _written(completion: Completion) -> dict[str, Any]:
    ids, text, reason = outcome(completion)
    return {"finish_reason": reason, "text": text, "token_ids": list(ids)}


def first_difference(first: tuple[int, ...] | str, second: tuple[int, ...] | str) -> int | None:
    """Return the first position at which two sequences differ, or None if they are equal.

    If one is a prefix of the other, the position is the end of the shorter one.
    """
    if first == second:
        return None
    pairs = enumerate(zip(first, second, strict=False))
    return next((position for position, (one, other) in pairs if one != other), min(len(first), len(second)))


def remove_oldest(folder: Path) -> None:
    """Delete all but the MOST_FILES newest files, ordered by name (a timestamp). Ignore files that can't be removed."""
    for file in sorted(folder.glob("*.json"))[:-MOST_FILES]:
        with suppress(OSError):
            file.unlink()
