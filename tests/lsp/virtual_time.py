"""An event loop with a virtual clock that jumps to the next scheduled event, so hours pass at once and
deterministically.

For code without sockets and threads.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable
from typing import TypeVar

Result = TypeVar("Result")


class _Selector(selectors.SelectSelector):
    """Waits by advancing the clock. `now` is in seconds."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits for ever"
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` is the virtual clock."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Return the seconds since the loop began."""
        return self._clock.now


def run_virtually(scenario: Awaitable[Result]) -> Result:
    """Run a scenario to its end."""

    async def whole() -> Result:
        return await scenario

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(whole())
