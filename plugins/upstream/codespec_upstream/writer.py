"""Turn the chunks of a server into the text, the events and the metrics of a completion."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any

from codespec.api.types import CompletionRequest, FinishReason
from codespec.engine.job import Job
from codespec.engine.metrics import Metrics
from codespec.engine.round import commit_text, conclude, end_text
from codespec.errors import FIELD, Fault, RequestError
from codespec.sequence import Sequence as Text
from codespec.text.ending import begin_endings
from codespec.text.filters import StopFinder
from codespec_upstream.client import UpstreamClient, UpstreamError
from codespec_upstream.probe import Facts
from codespec_upstream.prompt import Prompt, PromptBuilder

TAIL_SECONDS = 0.5  # maximum wait for the token counts after the end of a text
RETRY_SECONDS = (0.05, 0.2)  # range of the delay before the second try
MAX_TEXT = 1 << 20  # bytes of one completion
SPARE_PIECES = 16  # pieces accepted beyond `max_tokens`
NOT_UTF8 = "The upstream server sent text that is not UTF-8: look at its log."
NO_TOKENS = "only the upstream server has the model's tokenizer"


class RemoteWriter:
    """Requests completions from one server and appends the chunks to texts. `retries` counts repeated requests."""

    def __init__(self, facts: Facts, budget: int) -> None:
        self.facts = facts
        self.context = facts.context
        self.prompts = PromptBuilder(facts.family, facts.by_suffix, facts.context, budget)
        self.metrics = Metrics()
        self.retries = 0
        self.notes = ["another server writes: the text is its own, exact mode and speculation are not promised"]
        if not facts.fill_in:
            self.notes.append(f"no fill-in-the-middle template is known for {facts.model}: it can only continue texts")
        if not facts.context_known:
            self.notes.append(f"the upstream server does not report its context: {facts.context} tokens are assumed")

    async def write(
        self, client: UpstreamClient, text: Text, prompt: Prompt, session: str
    ) -> AsyncGenerator[None, None]:
        """Append the server's chunks to a text, and yield after each. Closing the generator closes the connection."""
        half = ""
        async with aclosing(self._chunks(client, self._body(text, prompt), session)) as chunks:
            async for chunk in chunks:
                piece, half, reason = read_chunk(chunk, half)
                if text.only_reads and (piece or reason):
                    text.finish_reason = "length"
                elif piece:
                    commit_text(text, piece)
                    if len(text.generated) > MAX_TEXT or text.num_generated > text.request.max_tokens + SPARE_PIECES:
                        raise UpstreamError("The upstream server writes more than requested: look at its log.")
                    yield
                if text.finish_reason:
                    return
                _count(text, chunk)
                if reason or not chunk:
                    await _read_tail(text, chunks)
                    if reason == "length":
                        text.finish_reason = "length"
                    else:
                        end_text(text)
                    return
        raise UpstreamError(
            NOT_UTF8 if half else "The upstream server broke off in the middle of its answer: look at its log."
        )

    async def _chunks(
        self, client: UpstreamClient, body: Mapping[str, Any], session: str
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the chunks of a completion. If the server does not reply, repeat the request once."""
        try:
            async with aclosing(client.chunks(body, session)) as chunks:
                async for chunk in chunks:
                    yield chunk
                return
        except UpstreamError as error:
            if not error.repeatable:
                raise
        self.retries += 1
        await asyncio.sleep(random.uniform(*RETRY_SECONDS))
        async with aclosing(client.chunks(body, session)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _body(self, text: Text, prompt: Prompt) -> dict[str, Any]:
        """Build the body of a request. Fields that some servers reject are left out at their default values."""
        request = text.request
        body: dict[str, Any] = {
            "model": self.facts.model,
            "prompt": prompt.text,
            "max_tokens": max(1, request.max_tokens),
            "temperature": request.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.facts.extras,
        }
        if prompt.suffix:
            body["suffix"] = prompt.suffix
        if request.temperature:
            body |= {"seed": request.seed + text.choice, "top_p": request.top_p}
        if request.top_k:
            body["top_k"] = request.top_k
        if request.min_p:
            body["min_p"] = request.min_p
        if request.repetition_penalty != 1.0:  # the names in vLLM and SGLang, and in llama-server
            body |= dict.fromkeys(("repetition_penalty", "repeat_penalty"), request.repetition_penalty)
        return body


def begin(writer: RemoteWriter, job: Job) -> tuple[Prompt, list[Text]]:
    """Return the prompt and the choices of a job. Blocks while another process parses the syntax at the cursor."""
    request, began = job.request, time.perf_counter()
    prompt = writer.prompts.build(request)
    if not (prompt.text or prompt.suffix):
        raise RequestError(Fault("empty", f"{FIELD} is empty", "give some text", "prefix"))
    stops = StopFinder(tuple(stop.encode() for stop in (*request.stop, *writer.prompts.tokenizer.vocab)))
    texts: list[Text] = []
    for choice, ending in enumerate(begin_endings(request)):
        text = Text(
            request=request,
            choice=choice,
            prompt_ids=[],
            context=b"",
            held=b"",
            continues=False,
            eos_ids=frozenset(),
            stops=stops,
            ending=ending,
            listening=True,
            started=job.arrived,
        )
        text.stats.notes.extend(prompt.notes)
        if ending and ending.idle:
            text.stats.notes.append(f"nothing is suggested here: {ending.idle} (shapes line and block would)")
        text.stats.admit_ms = (time.perf_counter() - began) * 1000
        text.stats.queue_ms = (time.perf_counter() - job.arrived) * 1000
        texts.append(text)
    return prompt, texts


def finish(writer: RemoteWriter, text: Text, reason: FinishReason) -> None:
    """End a text: add its last events, and count the text in the metrics."""
    text.stats.total_ms = (time.perf_counter() - text.started) * 1000
    conclude(text, reason)
    writer.metrics.count_end(text.stats)
    with writer.metrics.lock:
        writer.metrics.committed += text.stats.committed


def refuse_tokens(request: CompletionRequest) -> None:
    """Raise RequestError if a request contains token ids or asks for log probabilities."""
    if request.prompt_ids:
        what = f"{FIELD} can't be token ids, since {NO_TOKENS}"
        raise RequestError(Fault("no_tokens", what, "send text", "prompt_ids"))
    if request.logprobs is not None:
        raise RequestError(
            Fault("no_tokens", f"{FIELD} can't be computed, since {NO_TOKENS}", "leave it out", "logprobs")
        )


def read_chunk(chunk: Mapping[str, Any], half: str = "") -> tuple[bytes, str, str]:
    """Return a chunk's text, the half of a surrogate pair at the text's end, and the finish reason ("": none).

    Servers in JavaScript may split a pair; `half` is the first half from the previous chunk. Raises UpstreamError.
    """
    choices = chunk.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    text = choice.get("text") or "" if isinstance(choice, dict) else None
    if not isinstance(text, str):
        raise UpstreamError("The upstream server sent a chunk without text: check that it is OpenAI-compatible.")
    reason = str(choice.get("finish_reason") or "")
    text = half + text
    half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
    text = text.removesuffix(half)
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16").encode(), half, reason
    except UnicodeError as error:
        raise UpstreamError(NOT_UTF8) from error


def _count(text: Text, chunk: Mapping[str, Any]) -> None:
    """Copy the token counts of a chunk to the statistics of a text, if the chunk has any."""
    usage = chunk.get("usage")
    if not isinstance(usage, dict):
        return
    details = usage.get("prompt_tokens_details")
    counts = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "cached_tokens": details.get("cached_tokens") if isinstance(details, dict) else None,
        "committed": usage.get("completion_tokens"),
    }
    for name, count in counts.items():
        if type(count) is int and 0 <= count < 1 << 31:
            setattr(text.stats, name, count)


async def _read_tail(text: Text, chunks: AsyncGenerator[dict[str, Any], None]) -> None:
    """Read the chunks after the end of a text, for the token counts and so that the connection can be reused."""
    with suppress(TimeoutError, UpstreamError):
        async with asyncio.timeout(TAIL_SECONDS):
            async for chunk in chunks:
                _count(text, chunk)
