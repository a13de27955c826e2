"""A circuit breaker: after repeated failures, requests are refused at once until a probe succeeds (Nygard 2007)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from codespec.errors import Fault, UpstreamError

MOST_FAILURES = 5  # in a row
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds before the first probe, which double after each failed one


@dataclass(slots=True)
class Circuit:
    """Whether requests are sent.

    `opened` is set while they are not; `reason` is then the last failure. `held_until` is the time before which the
    server has asked for no request, in seconds of `time.monotonic`.
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
        """A sentence for the user while the circuit is open, or ""."""
        if not self.is_open:
            return ""
        seconds = time.monotonic() - self.since
        return f"No request has been sent upstream for {seconds:.0f} s, since it failed {self.failures} times in a row."

    def demand(self) -> None:
        """Raise UpstreamError if no request may be sent now."""
        left = self.held_until - time.monotonic()
        if left > 0:
            sentence = f"The upstream server has too many requests: ask again in {left:.0f} s."
            raise UpstreamError(sentence, 429, max(1, round(left)), unwell=False)
        if self.is_open:
            what = f"Nothing is sent upstream after {self.failures} failures in a row ({self.reason})"
            fault = Fault("circuit_open", what, "a probe looks every few seconds, see `codespec doctor`")
            raise UpstreamError(fault, 503, max(1, round(self.wait)), unwell=False)

    def succeed(self) -> None:
        """Count an answer."""
        self.failures, self.wait, self.reason = 0, FIRST_WAIT, ""
        self.opened.clear()

    def fail(self, error: UpstreamError) -> None:
        """Count a failure, and open the circuit after too many."""
        if error.status == 429:
            self.held_until = time.monotonic() + error.retry_after
        if not error.unwell:
            return
        self.failures += 1
        self.reason = error.reason
        if self.failures >= MOST_FAILURES and not self.is_open:
            self.since = time.monotonic()
            self.opened.set()
