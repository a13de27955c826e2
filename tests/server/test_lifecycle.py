"""The daemon's wait for its end."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from codespec.errors import ModelError
from codespec.server.app import _until


def test_a_signal_ends_the_watch_over_the_engine() -> None:
    """Otherwise an engine that fails while the daemon drains would leave an unhandled error."""
    ends: list[str] = []

    async def watch() -> NoReturn:
        try:
            while True:
                await asyncio.sleep(3600)
        finally:
            ends.append("the watch")

    async def scenario() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_soon(stop.set)
        await _until(stop, watch())
        await asyncio.sleep(0)
        assert ends == ["the watch"]

    asyncio.run(scenario())


def test_an_engine_that_fails_ends_the_wait() -> None:
    async def fail() -> NoReturn:
        raise ModelError("no weights")

    with pytest.raises(ModelError, match="no weights"):
        asyncio.run(_until(asyncio.Event(), fail()))
