"""A source of text that sends each request to another server and turns its chunks into events.

All work runs on the event loop. Prompts, endings, filters and time limits are the same as with an engine. Identical
requests share one completion, and a newer request for a document replaces an older request.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from codespec.api.limits import is_loopback
from codespec.api.types import check_length
from codespec.engine.job import Job, Message, RequestHandle, empty_completions, join
from codespec.errors import CodespecError, ServeError
from codespec.sequence import Sequence as Text
from codespec.server.daemon import Loaded, Result, Source
from codespec.server.logs import log, log_failure
from codespec_upstream.client import UpstreamClient, UpstreamError
from codespec_upstream.probe import FIRST_WAIT, LONGEST_WAIT, Circuit, Facts, look, one_token
from codespec_upstream.prompt import Prompt
from codespec_upstream.writer import RemoteWriter, begin, finish, refuse_tokens

SLOTS = 32  # concurrent requests that the daemon reports; the server queues further requests
LOOK_EVERY = 0.01  # seconds between checks of a time limit that depends on the text


@dataclass(slots=True, eq=False)
class Work:
    """One completion in progress."""

    job: Job
    session: str
    task: asyncio.Task[None] | None = None


class Upstream(Source):
    """A server as a source of text. `model` is a model's name ("": the only model), `budget` is in prompt tokens."""

    def __init__(self, client: UpstreamClient, model: str = "", budget: int = 2048) -> None:
        super().__init__()
        self.client = client
        self.circuit = Circuit()
        self.outcomes = Counter(done=0, failed=0, cancelled=0, refused=0)
        self.writer: RemoteWriter | None = None
        self._model, self._budget = model, budget
        self._facts: Facts | None = None
        self._works: list[Work] = []
        self._builder = ThreadPoolExecutor(1, "codespec-prompts")  # keeps the order of prompts
        self._loop: asyncio.AbstractEventLoop | None = None
        self._life: asyncio.Task[None] | None = None

    @property
    def num_running(self) -> int:
        """The number of open requests."""
        return sum(len(work.job.handles) for work in self._works)

    @property
    def warning(self) -> str:
        """A sentence for the user if the circuit breaker is open, else ""."""
        return self.circuit.warning

    @property
    def remote(self) -> Mapping[str, Any] | None:
        """The server's state in the form of /health and /v1/codespec/stats."""
        facts = self._facts
        return {
            "url": self.client.base,
            "model": facts.model if facts else "",
            "fill_in": facts.fill_in if facts else "",
            "latency_ms": round(facts.latency * 1000, 1) if facts else None,
            "exact": False,
            "speculation": False,
            "circuit": "open" if self.circuit.is_open else "closed",
            "failures": self.circuit.failures,
            "reason": self.circuit.reason,
            "requests": dict(self.outcomes),
            "retries": self.writer.retries if self.writer else 0,
        }

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to probe the server, and to probe it again after failures."""
        self._loop = loop
        self._life = loop.create_task(self._live())

    def admit(self, handle: RequestHandle) -> None:
        """Begin a request and end older requests for its document. Raises UpstreamError if requests are refused now."""
        try:
            self.circuit.demand()
        except UpstreamError:
            self.outcomes["refused"] += 1
            raise
        superseded = [old for work in self._works for old in work.job.handles if handle.supersedes(old)]
        self._join(handle)
        for older in superseded:
            self.abort(older)
            older.push(empty_completions(older.request, "cancelled"))

    def abort(self, handle: RequestHandle) -> None:
        """Drop a request. The connection to the server is closed unless another request shares the completion."""
        for work in [work for work in self._works if work.job is handle.job]:
            if work.job.leave(handle):
                self.outcomes["cancelled"] += 1
                self._remove(work)

    async def call(self, function: Callable[[], Result]) -> Result:
        """Run a function on the event loop, which does all the work here, and return its result."""
        return function()

    def stop(self, seconds: float) -> bool:
        """Stop building prompts. The result is always true, because no thread needs to be waited for."""
        self.state = "stopped"
        self._builder.shutdown(wait=False, cancel_futures=True)
        return True

    async def close(self) -> None:
        """Close the connections to the server."""
        if self._life is not None:
            self._life.cancel()
            await asyncio.gather(self._life, return_exceptions=True)

    async def _live(self) -> None:
        async with self.client:
            try:
                self._facts = facts = await self._look()
            except CodespecError as error:
                self._give_up(error)
                return
            self.writer = RemoteWriter(facts, self._budget)
            if self.client.is_plain and not is_loopback(self.client.host):
                self.writer.notes.append("the upstream server is reached without TLS: others can read text and key")
            reason = "" if facts.fill_in else "no template is known for the upstream server's model"
            is_path = facts.model.startswith("/")  # as llama-server reports it
            name = facts.model.rpartition("/")[2] if is_path else facts.model
            self.loaded = Loaded(
                None,
                name,
                facts.context,
                SLOTS,
                self.writer.prompts.tokenizer,
                self.writer.metrics,
                self.writer.notes,
                device="upstream",
                mode="upstream",
                prompt_budget=self._budget,
                names=(name, facts.model),
                no_fim=reason,
            )
            self.state = "ready"
            self._ready.set()
            while True:
                await self.circuit.opened.wait()
                log.warning("the upstream server failed %d times in a row: no requests are sent", self.circuit.failures)
                await self._until_well(facts)

    async def _look(self) -> Facts:
        """Probe the server, again and again until it can be reached."""
        wait = FIRST_WAIT
        while True:
            self.progress.phase = "probing the upstream server"
            try:
                return await look(self.client, self._model)
            except UpstreamError as error:
                if not (error.repeatable or error.status in (429, 504)):
                    raise
                self.progress.phase = error.reason
                log.warning("waiting: %s", error)
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    async def _until_well(self, facts: Facts) -> None:
        """Probe the server with one token until it answers, then close the circuit."""
        while self.circuit.is_open:
            await asyncio.sleep(self.circuit.wait)
            try:
                await self.client.complete(one_token(facts.model))
                self.circuit.succeed()
            except UpstreamError as error:
                self.circuit.reason = error.reason
                self.circuit.wait = min(2 * self.circuit.wait, LONGEST_WAIT)

    def _give_up(self, error: CodespecError) -> None:
        self.error, self.state = error, "failed"
        self._ready.set()
        self._failed.set()

    def _join(self, handle: RequestHandle) -> None:
        """Add a handle to the completion of an equal request, or begin a new completion."""
        job = join(handle, [work.job for work in self._works])
        if job.handles == [handle]:
            work = Work(job, handle.session)
            self._works.append(work)
            assert self._loop is not None
            work.task = self._loop.create_task(self._run(work))
        handle.push(job.events)

    def _remove(self, work: Work) -> None:
        if work in self._works:
            self._works.remove(work)
        if work.task is not None:
            work.task.cancel()

    async def _run(self, work: Work) -> None:
        """Write one completion from its prompt to its end."""
        tasks: list[asyncio.Task[None]] = []
        try:
            prompt = await self._begin(work.job)
            if work.job.deadline is not None or work.job.request.after_first_ms is not None:
                tasks.append(asyncio.create_task(self._expire(work)))
            writing = [self._write(work, choice, prompt) for choice in range(len(work.job.sequences))]
            choices = [asyncio.create_task(coroutine) for coroutine in writing]
            tasks += choices
            await asyncio.gather(*choices)
            self._end(work, "done")
        except CodespecError as error:
            self._end(work, "failed", [error])
        except Exception as error:  # task boundary: otherwise the client would wait forever
            log_failure("a request failed on its way upstream", error)
            self._end(work, "failed", [ServeError("The daemon failed on this request: see its log.", 500)])
        finally:
            for task in tasks:
                task.cancel()

    async def _begin(self, job: Job) -> Prompt:
        """Build the prompt and the sequences of a job, and return the prompt. Raises RequestError."""
        assert self.writer is not None and self._loop is not None
        refuse_tokens(job.request)
        check_length(job.request, self.writer.context)
        prompt, job.sequences = await self._loop.run_in_executor(self._builder, begin, self.writer, job)
        return prompt

    async def _write(self, work: Work, choice: int, prompt: Prompt) -> None:
        assert self.writer is not None
        sequence = work.job.sequences[choice]
        if not (sequence.ending and sequence.ending.idle):
            try:
                await self._stream(work, choice, prompt)
                self.circuit.succeed()
            except UpstreamError as error:
                self.circuit.fail(error)
                raise
        finish(self.writer, sequence, sequence.finish_reason or "stop")
        self._deliver(work)

    async def _stream(self, work: Work, choice: int, prompt: Prompt) -> None:
        """Write one choice. If the server rejects the prompt as too long, try once more with a shorter prompt."""
        assert self.writer is not None and self._loop is not None
        sequence, prompts = work.job.sequences[choice], self.writer.prompts
        try:
            await self._pieces(work, sequence, prompt)
        except UpstreamError as error:
            if error.excess is None:
                raise
            prompts.context = min(prompts.context, error.excess.context)
            # If the server stopped counting, assume one byte for each token, the least possible.
            tokens = prompt.nbytes if error.excess.is_bound else error.excess.prompt
            counted, longer = prompt.nbytes / tokens, prompt
            prompts.learn(sequence.request.owner, prompt.nbytes, tokens)
            prompt = await self._loop.run_in_executor(self._builder, prompts.build, sequence.request, counted)
            kept = [note for note in sequence.stats.notes if note not in longer.notes]
            sequence.stats.notes[:] = [*prompt.notes, *kept]
            await self._pieces(work, sequence, prompt)
        if tokens := sequence.stats.prompt_tokens:
            prompts.learn(sequence.request.owner, prompt.nbytes, tokens)

    async def _pieces(self, work: Work, sequence: Text, prompt: Prompt) -> None:
        assert self.writer is not None
        async with aclosing(self.writer.write(self.client, sequence, prompt, work.session)) as pieces:
            async for _ in pieces:
                self._deliver(work)

    async def _expire(self, work: Work) -> None:
        """End a completion when one of its time limits has passed."""
        job = work.job
        while not job.is_overdue(now := time.perf_counter()):
            timed = job.request.after_first_ms is not None
            wait = LOOK_EVERY if job.deadline is None or timed else job.deadline - now
            await asyncio.sleep(wait)
        assert self.writer is not None
        for sequence in work.job.sequences:
            if not sequence.finish_reason:
                finish(self.writer, sequence, "deadline")
        self._end(work, "done")
        self._remove(work)

    def _deliver(self, work: Work, last: Collection[Message] = ()) -> None:
        messages = [*work.job.read_events(), *last]
        for handle in work.job.handles:
            handle.push(messages)

    def _end(self, work: Work, outcome: str, last: Collection[Message] = ()) -> None:
        self._deliver(work, last)
        self.outcomes[outcome] += 1
        if work in self._works:
            self._works.remove(work)
