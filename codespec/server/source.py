"""Where the daemon's text comes from: an engine on its own thread, or another server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeVar

from codespec.errors import CodespecError
from codespec.server.handles import RequestHandle

if TYPE_CHECKING:
    from codespec.server.dispatcher import Dispatcher
    from codespec.server.loading import Loaded, Progress

State = Literal["starting", "ready", "failed", "stopped"]
Result = TypeVar("Result")


class Source(Protocol):
    """Takes requests and pushes events to their handles. All of it may be used on the event loop."""

    state: State
    progress: Progress
    loaded: Loaded | None
    dispatcher: Dispatcher | None
    error: CodespecError | None

    @property
    def num_running(self) -> int:
        """Number of open requests that are being written."""

    @property
    def warning(self) -> str:
        """A sentence about a fault that lasts, or ""."""

    @property
    def remote(self) -> Mapping[str, Any] | None:
        """The state of the server that writes; None if this process does."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start; events go to this loop."""

    async def until_loaded(self) -> None:
        """Wait until requests can be taken. Raise the error if that fails."""

    async def until_failed(self) -> NoReturn:
        """Wait for a failure for good, and raise the error."""

    def admit(self, handle: RequestHandle) -> None:
        """Take a request. Raises ServeError."""

    def abort(self, handle: RequestHandle) -> None:
        """Drop a request whose client is gone."""

    async def call(self, function: Callable[[], Result]) -> Result:
        """Run a function when it disturbs no request. Raises ServeError."""

    def stop(self, seconds: float) -> bool:
        """Stop; return False if it is still busy after `seconds`."""
