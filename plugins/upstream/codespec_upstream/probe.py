"""Find out a server's model, context and support for fill-in-the-middle, and stop sending requests to a broken server.

Some servers silently ignore `suffix`. The field counts as supported only if the server counts more prompt tokens with
it. After repeated failures, a circuit breaker refuses requests at once until a probe succeeds (Nygard 2007).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from codespec.errors import Fault
from codespec.text.fim_templates import family_named
from codespec_upstream.client import UpstreamClient, UpstreamError

CONTEXT = 4096  # tokens, assumed if the server does not report the context
MAX_CONTEXT = 1 << 20
MIN_LONGER = 8  # prompt tokens that a suffix must add; SUFFIX has more than twice as many
OWNERS = ("vllm", "sglang")  # by default, these hide the control token after which a model writes another file
SHOW_CONTROLS = {"skip_special_tokens": False}
MAX_FAILURES = 5  # in a row
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds before a probe; each failed probe doubles the wait
PROMPT = "def add(a, b):\n    return "
SUFFIX = "\n\n\nprint(add(1, 2))\nprint(add(3, 4))\nprint(add(5, 6))\nprint(add(7, 8))\n"


@dataclass(frozen=True, slots=True)
class Facts:
    """The properties of a server.

    `family` is the model family, derived from the model's name ("": unknown). `by_suffix` tells whether the server
    supports the field `suffix`, and `context_known` whether the server reports `context`, which is in tokens. `latency`
    is the time to generate one token, in seconds.
    """

    model: str
    context: int
    context_known: bool
    family: str
    by_suffix: bool
    latency: float
    extras: Mapping[str, Any] = field(default_factory=dict)  # fields that only this server needs

    @property
    def fill_in(self) -> str:
        """The server's method of fill-in-the-middle as a phrase, or "" if there is none."""
        if self.by_suffix:
            return "by its own suffix"
        return f"by the {self.family} template" if self.family else ""


async def look(client: UpstreamClient, model: str = "") -> Facts:
    """Find out a server's properties. Raises UpstreamError if the server fails or does not serve `model`."""
    entry = _choose(await client.models(), model)
    name = str(entry["id"])
    begun = time.perf_counter()
    plain = await client.complete(one_token(name))
    latency = time.perf_counter() - begun
    context = _context(entry)
    by_suffix = await _takes_suffix(client, name, plain)
    extras = SHOW_CONTROLS if entry.get("owned_by") in OWNERS else {}
    return Facts(name, context or CONTEXT, context is not None, family_named(name), by_suffix, latency, extras)


def one_token(model: str) -> dict[str, Any]:
    """Build the body of a request for one token."""
    return {"model": model, "prompt": PROMPT, "max_tokens": 1, "temperature": 0.0}


async def _takes_suffix(client: UpstreamClient, model: str, plain: Mapping[str, Any]) -> bool:
    try:
        filled = await client.complete({**one_token(model), "suffix": SUFFIX})
    except UpstreamError as error:
        if error.repeatable:
            raise
        return False  # the server rejects the field
    before, behind = _prompt_tokens(plain), _prompt_tokens(filled)
    return before is not None and behind is not None and behind >= before + MIN_LONGER


def _prompt_tokens(reply: Mapping[str, Any]) -> int | None:
    usage = reply.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return count if type(count) is int else None


def _choose(models: list[dict[str, Any]], wanted: str) -> dict[str, Any]:
    names = [str(item["id"]) for item in models]
    shown = ", ".join(name[:80] for name in names[:8])
    if wanted and wanted not in names:
        raise UpstreamError(f"The upstream server does not serve {wanted}: choose one of {shown}.", 404)
    if not wanted and len(models) > 1:
        sentence = f"The upstream server serves {len(models)} models: choose one with --upstream-model ({shown})."
        raise UpstreamError(sentence, 404)
    return models[names.index(wanted) if wanted else 0]


def _context(entry: Mapping[str, Any]) -> int | None:
    """Return the context from an entry of /v1/models, or None. The field's name depends on the server."""
    meta = entry.get("meta")
    of_vllm, of_llama_cpp = entry.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None
    for value in (of_vllm, of_llama_cpp, entry.get("max_context_length"), entry.get("context_length")):
        if type(value) is int and value >= 64:
            return min(value, MAX_CONTEXT)
    return None


@dataclass(slots=True)
class Circuit:
    """A circuit breaker, which refuses requests while it is open. Only failures that are the server's fault count.

    `reason` describes the last failure. `held_until` is when the server's Retry-After ends, by `time.monotonic`.
    """

    failures: int = 0  # in a row
    wait: float = FIRST_WAIT
    reason: str = ""
    since: float = 0.0
    held_until: float = 0.0
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_open(self) -> bool:
        """Whether requests are refused."""
        return self.opened.is_set()

    @property
    def warning(self) -> str:
        """A sentence for the user if the circuit breaker is open, else ""."""
        if not self.is_open:
            return ""
        seconds = time.monotonic() - self.since
        return f"No request has been sent upstream for {seconds:.0f} s, since it failed {self.failures} times in a row."

    def demand(self) -> None:
        """Raise UpstreamError if no request may be sent now."""
        left = self.held_until - time.monotonic()
        if left > 0:
            sentence = f"The upstream server has too many requests: try again in {left:.0f} s."
            raise UpstreamError(sentence, 429, max(1, round(left)), unwell=False)
        if self.is_open:
            what = f"Nothing is sent upstream after {self.failures} failures in a row ({self.reason})"
            fault = Fault("circuit_open", what, "see `codespec doctor`; a probe tests the server every few seconds")
            raise UpstreamError(fault, 503, max(1, round(self.wait)), unwell=False)

    def succeed(self) -> None:
        """Record a success, which closes the circuit breaker."""
        self.failures, self.wait, self.reason = 0, FIRST_WAIT, ""
        self.opened.clear()

    def fail(self, error: UpstreamError) -> None:
        """Record a failure. MAX_FAILURES in a row open the circuit breaker."""
        if error.status == 429:
            self.held_until = time.monotonic() + error.retry_after
        if not error.unwell:
            return
        self.failures += 1
        self.reason = error.reason
        if self.failures >= MAX_FAILURES and not self.is_open:
            self.since = time.monotonic()
            self.opened.set()
