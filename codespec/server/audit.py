"""The audit of exact mode: a share of the finished completions is decoded again without drafts and must come out the
same. Decides what is compared, and what follows from a difference: a file to reproduce it, a warning without source
text, and fast mode.

Prompts are read from the cache if it holds them, so what is compared is the decoding. Knows the engine's interface and
finished jobs; knows no schedule (the dispatcher starts and stops audits) and no clients.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codespec import __version__, json_store
from codespec.models.processor import processor
from codespec.sequence import Sequence
from codespec.server.jobs import Job
from codespec.server.logs import log
from codespec.types import Completion, CompletionRequest, DoneEvent
from codespec.user_folders import make_state_folder, state_folder

if TYPE_CHECKING:
    from codespec.engine.engine import Engine

MOST_PENDING, MOST_BYTES = 2, 4 << 20  # completions that wait for idle time, and their texts' bytes together
TRIES = 3  # after that many interruptions an audit is given up
QUIET = 1.0  # seconds without work before one begins
MOST_FILES = 20
NONE_YET = {"same": 0, "different": 0, "abandoned": 0}
REASON = "a completion with drafts differs from plain decoding"


@dataclass(slots=True, eq=False)
class Repeat:
    """A finished completion that is to be decoded again, with its choices as they were written."""

    sequences: list[Sequence]
    written: Mapping[int, Completion]
    size: int
    tries: int = 0


class Audit:
    """Takes every `every`-th completion that drafts took part in (0: none) while the engine is in exact mode. `results`
    may be read from another thread; `names` are the models', for the file.
    """

    def __init__(self, engine: Engine, every: int = 0, names: Mapping[str, str] | None = None) -> None:
        self.engine = engine
        self.every = every
        self.names = names or {}
        self.results = Counter(NONE_YET)
        self._seen = 0
        self._pending: deque[Repeat] = deque()
        self._current: Repeat | None = None
        self._not_before = 0.0

    @property
    def num_pending(self) -> int:
        """Completions that wait for idle time."""
        return len(self._pending)

    @property
    def due(self) -> float | None:
        """When the next one may begin, in seconds of perf_counter; None where there is none."""
        return self._not_before if self._pending else None

    def put_off(self, now: float) -> None:
        """There is other work: the wait for a quiet moment starts again."""
        self._not_before = now + QUIET

    def consider(self, job: Job) -> None:
        """Picks every `every`-th finished job."""
        if not self.every or self.engine.mode != "exact" or not is_eligible(job):
            return
        self._seen += 1
        if self._seen % self.every:
            return
        repeat = Repeat(job.sequences, completions_of(job), size_of(job.request))
        taken = sum(other.size for other in self._pending)
        if len(self._pending) < MOST_PENDING and taken + repeat.size <= MOST_BYTES:
            self._pending.append(repeat)
        else:
            self.results["abandoned"] += 1

    def begin(self) -> list[Sequence]:
        """The finished sequences that are decoded again now."""
        self._current = self._pending.popleft()
        return self._current.sequences

    def interrupt(self) -> None:
        """A request came: it is decoded from the beginning in another quiet moment, or given up."""
        repeat, self._current = self._current, None
        assert repeat is not None
        repeat.tries += 1
        if repeat.tries < TRIES:
            self._pending.appendleft(repeat)
        else:
            self.results["abandoned"] += 1

    def give_up(self) -> None:
        """It can't be decoded again."""
        self._current = None
        self.results["abandoned"] += 1

    def judge(self, job: Job) -> None:
        """Compares what the finished job wrote with the first text."""
        repeat, self._current = self._current, None
        assert repeat is not None
        pairs = [(first, completions_of(job)[choice]) for choice, first in sorted(repeat.written.items())]
        if all(outcome(first) == outcome(plain) for first, plain in pairs):
            self.results["same"] += 1
            return
        self.results["different"] += 1
        self._pending.clear()
        file = self._keep({**self._circumstances(), **report(repeat.sequences[0], pairs)})
        self.engine.leave_exact(REASON)
        log.warning("exact mode does not hold here (%s): fast mode is used from now on; %s", REASON, file)

    def _keep(self, content: Mapping[str, Any]) -> str:
        """Writes the file; returns what the log says of it."""
        folder = state_folder() / "audit"
        file = folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{time.time_ns() % 10**9:09}.json"
        try:
            make_state_folder()
            folder.mkdir(mode=0o700, exist_ok=True)
            folder.chmod(0o700)  # an older one may be readable by others
            json_store.write(file, content)  # for this user alone, as all temporary files are
            remove_oldest(folder)
        except OSError as error:
            return f"what reproduces it can't be kept in {folder} ({error.strerror})"
        return f"{file} reproduces it, and holds the request's text"

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
    """Whether plain decoding must write the same as this finished job: it reached its end, no time limit cut it, drafts
    took part, and exact mode promises the text, not only its distribution.
    """
    done = completions_of(job).values()
    ended = all(completion.finish_reason in ("stop", "length") for completion in done)
    return ended and job.request.rule == "match" and any(completion.stats.drafted for completion in done)


def completions_of(job: Job) -> dict[int, Completion]:
    """What a job wrote, by choice; of a job that ran again, the last run."""
    return {event.choice: event.completion for event in job.messages if isinstance(event, DoneEvent)}


def outcome(completion: Completion) -> tuple[tuple[int, ...], str, str]:
    """What must not depend on drafts."""
    return completion.token_ids, completion.text, completion.finish_reason


def size_of(request: CompletionRequest) -> int:
    """Bytes of a request's texts, and eight for each id."""
    texts = (request.prefix, request.suffix, request.prediction, *(snippet.text for snippet in request.snippets))
    return sum(len(text.encode()) for text in texts) + 8 * len(request.prompt_ids)


def report(sequence: Sequence, pairs: list[tuple[Completion, Completion]]) -> dict[str, Any]:
    """The request, what both runs wrote, and where they differ first."""
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
    """The first position at which two differ, which may be the end of one; None if they are equal."""
    if first == second:
        return None
    pairs = enumerate(zip(first, second, strict=False))
    return next((position for position, (one, other) in pairs if one != other), min(len(first), len(second)))


def remove_oldest(folder: Path) -> None:
    """Keeps the newest files, by their names, which are times; one that can't be removed stays."""
    for file in sorted(folder.glob("*.json"))[:-MOST_FILES]:
        with suppress(OSError):
            file.unlink()
