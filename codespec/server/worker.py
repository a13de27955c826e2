"""The one thread that touches the engine: it loads it, runs rounds while there is work, and sleeps otherwise.

Knows threads and the desk; what a round is, the desk knows. Handlers hand in commands, events go back to the event loop
in one batch a round.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NoReturn, TypeVar

from codespec.errors import CodespecError, ServeError
from codespec.server.audit import Audit
from codespec.server.desk import Desk, Parcel
from codespec.server.loading import Loaded, Progress
from codespec.server.logs import log_failure
from codespec.server.tickets import Ticket

State = Literal["starting", "ready", "failed", "stopped"]
Result = TypeVar("Result")
PATIENCE = 0.15  # seconds after a text before what may follow it is computed: keystrokes come faster


class Worker:
    """Owns the engine. `state`, `progress` and `loaded` may be read from the event loop."""

    def __init__(self, load: Callable[[Progress], Loaded]) -> None:
        self.state: State = "starting"
        self.progress = Progress()
        self.loaded: Loaded | None = None
        self.desk: Desk | None = None  # for looking only
        self.error: CodespecError | None = None
        self._load = load
        self._inbox: list[Callable[[Desk], None]] = []
        self._wake = threading.Condition()
        self._stopping = False
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = asyncio.Event()
        self._failed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="codespec-engine", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins to load; events will go to this loop."""
        self._loop = loop
        self._thread.start()

    async def loading(self) -> None:
        """Waits until the engine is there. Raises the error if it will not be."""
        await self._ready.wait()
        if self.error is not None:
            raise self.error

    async def failing(self) -> NoReturn:
        """Waits until the engine has failed, and raises the error."""
        await self._failed.wait()
        assert self.error is not None
        raise self.error

    def admit(self, ticket: Ticket) -> None:
        """Hands a ticket in."""
        self._post(lambda desk: desk.admit(ticket))

    def leave(self, ticket: Ticket) -> None:
        """Nobody waits for this ticket any more; a thread that has ended needs not be told."""
        with contextlib.suppress(ServeError):
            self._post(lambda desk: desk.leave(ticket))

    async def call(self, function: Callable[[], Result]) -> Result:
        """Runs something of the engine's between two rounds; for what is not safe beside it."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._post(lambda _: self._answer(function, future))
        return await future

    def stop(self, seconds: float) -> bool:
        """Ends the thread and keeps what the engine learned; False if it is still busy after `seconds`."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _post(self, command: Callable[[Desk], None]) -> None:
        with self._wake:
            if self._closed:
                raise ServeError("The engine has stopped: restart the daemon.", 503)
            self._inbox.append(command)
            self._wake.notify()

    def _run(self) -> None:
        try:
            self.loaded = self._load(self.progress)
        except CodespecError as error:
            self._give_up(error)
            return
        except BaseException as error:  # the border of the thread: what a library raises, panics too, is one sentence
            log_failure("the models did not load", error)
            self._give_up(ServeError(f"The models did not load ({type(error).__name__}): see the log above.", 503))
            return
        desk = self.desk = _desk(self.loaded)
        self.state = "ready"
        self._tell(self._ready.set)
        try:
            self._work(desk)
            self.state = "stopped"
            self._close(desk, ServeError("The daemon is stopping: ask again when it is back.", 503, 5))
            desk.engine.close()
        except BaseException as error:  # the border of the thread: without it, every open request would wait for ever
            log_failure("the engine's thread ended", error)
            self._give_up(ServeError(f"The engine has stopped ({type(error).__name__}): restart the daemon.", 503))
            self._close(desk, ServeError("The engine has stopped: restart the daemon.", 503))

    def _work(self, desk: Desk) -> None:
        while (commands := self._take(desk)) is not None:
            for command in commands:
                command(desk)
            desk.round()
            self._deliver(desk)

    def _close(self, desk: Desk, error: ServeError) -> None:
        """Nothing more is taken; who is still here is told why."""
        with self._wake:
            self._closed = True
            commands, self._inbox = self._inbox, []
        desk.refuse_all(error)  # first, so that the commands find nothing that needs the engine, which may be broken
        for command in commands:
            command(desk)
        desk.refuse_all(error)
        self._deliver(desk)

    def _take(self, desk: Desk) -> list[Callable[[Desk], None]] | None:
        """New commands, waited for while there is nothing to do; None once the thread is to end."""
        with self._wake:
            while not (self._inbox or self._stopping or (seconds := desk.idle_for) == 0.0):
                self._wake.wait(seconds)
            if self._stopping:
                return None
            commands, self._inbox = self._inbox, []
            return commands

    def _deliver(self, desk: Desk) -> None:
        parcels, desk.outbox = desk.outbox, []
        if parcels:
            self._tell(partial(_hand_out, parcels))

    def _answer(self, function: Callable[[], Result], future: asyncio.Future[Result]) -> None:
        try:
            result = function()
        except Exception as error:  # the border of the thread: the handler that asked gets it
            self._tell(partial(_set, future, future.set_exception, error))
        else:
            self._tell(partial(_set, future, future.set_result, result))

    def _give_up(self, error: CodespecError) -> None:
        self.error, self.state = error, "failed"
        self._tell(self._ready.set)
        self._tell(self._failed.set)

    def _tell(self, function: Callable[[], object]) -> None:
        """Runs something on the event loop; once that is closed, nobody is left to be told."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)


def _desk(loaded: Loaded) -> Desk:
    names = {"target": loaded.name, "drafter": loaded.drafter}
    audit = Audit(loaded.engine, loaded.audit_every, names)
    return Desk(loaded.engine, loaded.slots, loaded.prefetch, PATIENCE, audit)


def _hand_out(parcels: Sequence[Parcel]) -> None:
    for ticket, messages in parcels:
        ticket.push(messages)


def _set(future: asyncio.Future[Any], setter: Callable[[Any], None], value: object) -> None:
    if not future.cancelled():
        setter(value)
