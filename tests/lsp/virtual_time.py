"""An event loop whose clock goes only where the next thing to do is: hours pass at once, and always alike.

Knows asyncio; for code without sockets and threads.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable
from typing import TypeVar

Result = TypeVar("Result")


class _Selector(selectors.SelectSelector):
    """Waits by moving the clock. `now` is in seconds."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits for ever"
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `time()` is the virtual clock."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Seconds since the loop began."""
        return self._clock.now


def run_virtually(scenario: Awaitable[Result]) -> Result:
    """Runs a scenario to its end."""

    async def whole() -> Result:
        return await scenario

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(whole())
