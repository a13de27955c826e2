"""A fake engine that writes one character per step, for tests of order, sharing, cancellation and faults.

It has the part of the engine's interface that the server uses, and no model.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from codespec.api.types import (
    Completion,
    CompletionRequest,
    DoneEvent,
    Event,
    FinishReason,
    Owner,
    RoundEvent,
    Stats,
    TextEvent,
)
from codespec.engine.job import Job
from codespec.engine.metrics import Metrics
from codespec.engine.queue import Queue
from codespec.errors import FIELD, Fault, RequestError
from codespec.server.engine_thread import EngineThread
from tests.toy_tokenizers import toy_tokenizer

SLOW = 60  # steps of a prompt that contains SLOW


@dataclass(eq=False)
class FakeSequence:
    """One choice in progress."""

    request: CompletionRequest
    choice: int
    events: list[Event] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    generated: bytearray = field(default_factory=bytearray)
    held: bytes = b""
    ending: None = None
    waited: int = 0  # steps before the first character

    @property
    def num_generated(self) -> int:
        """Number of generated tokens, which are bytes here."""
        return len(self.generated)

    @property
    def remaining(self) -> int:
        """Number of tokens still allowed."""
        return self.request.max_tokens - self.num_generated


def answer(request: CompletionRequest) -> str:
    """Return the fake engine's text: the reversed prefix, repeated to `max_tokens` characters."""
    text = request.prefix[::-1] or "-"
    return (text * (request.max_tokens // len(text) + 1))[: request.max_tokens]


class FakeEngine:
    """Writes one character of the request's `answer` per step for every sequence; its end has the reason `ends`.

    `queue` is the real one. Clearing `gate` blocks the steps. A prefix with BOOM makes a step raise.
    """

    def __init__(
        self,
        pause: float = 0.0,
        slots: int = 4,
        answer: Callable[[CompletionRequest], str] = answer,
        ends: FinishReason = "length",
    ) -> None:
        self.pause = pause
        self.answer, self.ends = answer, ends
        self.queue = Queue(slots, self._finish)  # type: ignore[arg-type]
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()  # set at each step
        self.running: list[FakeSequence] = []
        self.submitted: list[CompletionRequest] = []
        self.mode = "exact"
        self.variance = ""
        self.kernel = ""
        self.prompt_budget = 1 << 20
        self.most = 0  # maximum of sequences in one step
        self.steps = 0
        self.closed = False
        self.metrics = Metrics()
        self.notes: list[str] = []
        self.faults: list[str] = []
        self.caches: dict[str, object] = {}
        self.files: dict[Owner, tuple[bytes, ...]] = {}
        self.target = SimpleNamespace(tokenizer=toy_tokenizer("bytes"), device="cpu")

    def start(self, job: Job) -> None:
        """Give a job its sequences."""
        job.sequences = self.submit(job.request)  # type: ignore[assignment]

    def submit(self, request: CompletionRequest) -> list[FakeSequence]:
        """Return the sequences of a client's request or a prefetch."""
        if "REFUSED" in request.prefix:
            raise RequestError(Fault("refused", f"{FIELD} must be something else", field="prefix"))
        if "UNTAKEN" in request.prefix:
            raise ZeroDivisionError("prefix in a message")
        self.submitted.append(request)
        return self._begin(request)

    def look_up_in(self, owner: Owner, files: Sequence[bytes]) -> None:
        """Record the files."""
        self.files[owner] = tuple(files)

    def step(self, chosen: Collection[FakeSequence]) -> None:
        """Write one more character of each given sequence."""
        self.entered.set()
        self.gate.wait(10)
        time.sleep(self.pause)
        self.steps += 1
        self.most = max(self.most, len(chosen))
        for sequence in [one for one in self.running if one in chosen]:
            if sequence.waited < SLOW * ("SLOW" in sequence.request.prefix):
                sequence.waited += 1
                continue
            text = self.answer(sequence.request)
            place = len(sequence.generated.decode())  # characters
            if not text:
                self._finish(sequence, self.ends)
                continue
            sequence.generated += text[place].encode()
            sequence.events += [RoundEvent(sequence.choice, "", 0, 0, "", "", text[place], "")]
            sequence.events += [TextEvent(sequence.choice, text[place])]
            if place == 2 and "BOOM" in sequence.request.prefix:
                self.faults.append(sequence.request.prefix)
                raise RuntimeError(f"{sequence.request.prefix} in a message")
            if place + 1 == len(text):
                self._finish(sequence, self.ends)

    def close(self) -> None:
        """Record the call."""
        self.closed = True

    def _begin(self, request: CompletionRequest) -> list[FakeSequence]:
        fresh = [FakeSequence(request, choice) for choice in range(request.n)]
        self.running += fresh
        return fresh

    def _finish(self, sequence: FakeSequence, reason: FinishReason) -> None:
        self.running.remove(sequence)
        sequence.finish_reason = reason
        tokens = sequence.num_generated
        stats = Stats(committed=tokens, prompt_tokens=len(sequence.request.prefix))
        completion = Completion(sequence.generated.decode(), (), reason, stats, sequence.choice)
        sequence.events.append(DoneEvent(sequence.choice, completion))


def thread_of(engine: FakeEngine, patience: float | None = None) -> EngineThread:
    """Return an engine's thread that is not started: the caller admits requests to its queue and runs its rounds."""
    thread = EngineThread(lambda progress: pytest.fail("it must not load"))
    thread.use(engine, patience)  # type: ignore[arg-type]
    return thread
