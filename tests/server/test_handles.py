"""An HTTP handler reads the same events from its request handle, however the engine's thread batches them."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.api.types import CompletionRequest, TextEvent
from codespec.engine.job import Message, RequestHandle, empty_completions
from codespec.errors import RequestError


def read(handle: RequestHandle, batches: list[list[Message]]) -> list[Message]:
    """Return all events, with a push between any two reads."""

    async def both() -> list[Message]:
        async def push() -> None:
            for batch in batches:
                await asyncio.sleep(0)
                handle.push(batch)

        pushing = asyncio.create_task(push())
        found = [event async for event in handle.events()]
        await pushing
        return found

    return asyncio.run(both())


@given(st.lists(st.integers(0, 3), max_size=8), st.integers(1, 3))
def test_events_come_in_order_and_end_with_the_last_choice(sizes: list[int], n: int) -> None:
    request = CompletionRequest(prefix="", n=n)
    texts: list[Message] = [TextEvent(0, str(number)) for number in range(sum(sizes))]
    rest = iter(texts)
    batches = [[next(rest) for _ in range(size)] for size in sizes]
    ends = empty_completions(request, "stop")
    handle = RequestHandle(request)
    assert read(handle, [*batches, [ends[0], *ends], [TextEvent(0, "late")]]) == [*texts, *ends]
    assert handle.over


def test_an_error_is_raised_behind_what_came_before() -> None:
    handle = RequestHandle(CompletionRequest(prefix=""))
    handle.push([TextEvent(0, "a"), RequestError("no: mend it", "prefix"), TextEvent(0, "b")])

    async def both() -> list[Message]:
        found: list[Message] = []
        with pytest.raises(RequestError):
            async for event in handle.events():
                found.append(event)
        return found

    assert asyncio.run(both()) == [TextEvent(0, "a")]
