"""Answer completion requests, from the cache or from the daemon, within a time budget.

A request for a text that has changed gets no answer. If the budget cuts an answer short, its completion keeps growing,
and `tell_more` notifies the client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from codespec_lsp.acceptance import Counters
from codespec_lsp.buffer import Edit
from codespec_lsp.completions import MAX_AHEAD, CachedCompletion, CompletionCache, EditRange, Suggestion, TypedPrefix
from codespec_lsp.documents import Document
from codespec_lsp.prompt import TextAround

# Seconds that a completion continues without a waiting request. If the user types the suggested text, the client
# requests again: VS Code 50 ms after a change, Neovim 200 ms.
AFTER_CANCEL, AFTER_EDIT = 0.15, 0.4
MORE_EVERY = 0.1  # minimum seconds from an answer or a `more` notification to the next one
RECENT = 0.3  # seconds within which a request counts as triggered by the last change


class ContentModified(Exception):
    """Raised if the document changed or a newer request superseded this one, so it gets no answer."""


@dataclass(eq=False, slots=True)
class PendingRequest:
    """A client's request, with the state of its document at that time.

    `received` is the clock's time, `offset` the cursor in code points. `selected`: an item of the client's completion
    list is selected, and the prompt continues after that item. `edit_range` is the range that an inline item replaces,
    `word` the one that a list item replaces. `grows`: the client extends what it shows, so the first text that can be
    shown is an answer. `resumes`: the request continues a stopped completion. `in_magic`: the cursor is in a magic of a
    notebook cell.
    """

    document: Document
    prompt: TextAround
    offset: int
    revision: int
    received: float
    edit_range: EditRange
    word: EditRange
    explicit: bool = False
    selected: bool = False
    grows: bool = False
    resumes: bool = False
    in_magic: bool = False
    superseded: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def stale(self) -> bool:
        """Whether the request no longer gets an answer."""
        return self.superseded or self.document.revision != self.revision

    @property
    def in_document(self) -> bool:
        """Whether the document contains all of the prompt's text."""
        return not self.selected and not self.resumes

    def is_beside(self, other: PendingRequest) -> bool:
        """Return whether the other request is equivalent, as when an editor's menu and ghost text both send one."""
        place = (self.revision, self.offset, self.selected)
        return place == (other.revision, other.offset, other.selected) and self.edit_range == other.edit_range


@dataclass(eq=False, slots=True)
class DocumentState:
    """The requests, streams and last answer of one document. `typed_prefix` follows the `streamed` completion."""

    newest: PendingRequest | None = None
    answering: list[PendingRequest] = field(default_factory=list)
    streamed: CachedCompletion | None = None
    typed_prefix: TypedPrefix = field(default_factory=lambda: TypedPrefix(0))
    task: asyncio.Task[None] | None = None
    linger: asyncio.TimerHandle | None = None
    alternatives: list[CachedCompletion] = field(default_factory=list)
    alternatives_task: asyncio.Task[None] | None = None
    answered: PendingRequest | None = None
    shown: Suggestion | None = None
    notified: bool = False  # the client was notified of more text and has sent no request since
    extended_at: float = 0.0  # time of the last answer or notification
    notify_later: asyncio.TimerHandle | None = None

    def follows_notification(self, request: PendingRequest) -> bool:
        """Return whether the client sent this request only because it was notified of more text."""
        return self.notified and self.answered is not None and self.answered.revision == request.revision

    def supersede(self, by: PendingRequest | None = None) -> None:
        """Mark the open requests as superseded, except those equivalent to `by`."""
        for request in [*self.answering, self.newest]:
            if request is not None and not (by and request.is_beside(by)):
                request.superseded = True
                request.wake.set()

    def let_linger(self, seconds: float) -> None:
        """Let a completion without a waiting request continue for some time."""
        if self.task is not None and not self.task.done():
            self.keep()
            self.linger = asyncio.get_running_loop().call_later(seconds, self.stop)

    def keep(self) -> None:
        """Let the completion continue because a request waits for it."""
        if self.linger is not None:
            self.linger.cancel()

    def stop(self) -> None:
        """Stop all streams."""
        self.keep()
        if self.task is not None:
            self.task.cancel()
        self.streamed = self.task = None
        self.stop_alternatives()

    def stop_alternatives(self) -> None:
        """Stop the stream of alternatives."""
        if self.alternatives_task is not None:
            self.alternatives_task.cancel()
        self.alternatives, self.alternatives_task = [], None


# Starts to stream completions. The last argument is the number of alternatives, or 0 for the best one.
Generate = Callable[[PendingRequest, list[CachedCompletion], int], "asyncio.Task[None]"]


class Completer:
    """Answers the requests of one client.

    `tell_more` notifies the client that a document's answer has grown, and returns whether it did.
    """

    def __init__(self, tell_more: Callable[[Document], bool], counters: Counters, clock: Callable[[], float]) -> None:
        self.from_cache = False  # whether the last answer was
        self.cache = CompletionCache()
        self._tell_more = tell_more
        self._counters = counters
        self._clock = clock
        self._states: dict[str, DocumentState] = {}

    def receive(self, request: PendingRequest) -> None:
        """Register a request on arrival. It supersedes older, different requests for its document."""
        state = self._state(request.document)
        state.supersede(request)
        state.newest = request

    def prompt_at(self, document: Document, offset: int) -> TextAround | None:
        """Return the prompt at an offset up to which the user typed along what is streamed, else None.

        It continues the prompt of what is streamed, which saves reading the document again.
        """
        state = self._state(document)
        if state.streamed is None or state.typed_prefix.tip != offset:
            return None
        return state.streamed.prompt.extended(
            state.streamed.text[: state.typed_prefix.typed] + state.typed_prefix.ahead
        )

    def edited(self, document: Document, edit: Edit) -> None:
        """Handle an edit. A completion that doesn't continue from the new text stops at once."""
        state = self._state(document)
        for request in state.answering:
            request.wake.set()
        state.stop_alternatives()
        if state.streamed is not None:
            state.typed_prefix.follow(edit, state.streamed.text, MAX_AHEAD)
            if state.typed_prefix.lost:
                state.stop()
            else:
                state.let_linger(AFTER_EDIT)

    def close(self, document: Document) -> None:
        """Stop all work for a closed document."""
        state = self._states.pop(document.uri, None)
        if state is not None:
            state.supersede()
            state.stop()
        self.cache.forget(document.uri)

    async def answer(
        self, request: PendingRequest, generate: Generate, budget: float, alternatives: int
    ) -> list[Suggestion]:
        """Return the suggestions to show, the best first. `generate` is used within `budget` seconds.

        Raises ContentModified.
        """
        state = self._state(request.document)
        if request.stale or not (state.newest is None or state.newest.is_beside(request)):
            # Second condition: of two equivalent requests, a newer one elsewhere in the document superseded only one.
            raise ContentModified
        was_notified = state.follows_notification(request)
        several = alternatives if request.explicit and not was_notified else 1
        state.answering.append(request)
        state.notified = False
        try:
            cached = self._find_cached(state, request)
            completion = self._find_or_generate(state, request, generate, cached)
            missing = several - max(1, len(cached))
            if missing > 0 and not (completion.done and not completion.text):
                state.stop_alternatives()
                state.alternatives = [CachedCompletion(request.prompt) for _ in range(missing)]
                state.alternatives_task = generate(request, state.alternatives, missing)
                self.cache.add(state.alternatives)
            await self._wait(state, request, completion, budget, several)
            if not completion.fits(request.prompt):  # the user typed ahead of it, and it went another way
                completion = self._find_or_generate(state, request, generate, self._find_cached(state, request))
                await self._wait(state, request, completion, budget, several)
            before = state.shown if state.answered is not None and state.answered.is_beside(request) else None
            suggestions = self._suggestions(state, request, completion, several)
            if before is not None and not was_notified and _is_longer(state.shown, before):
                # An equivalent request, answered earlier, could not be notified while this one waited.
                self._tell_more(request.document)
            return suggestions
        finally:
            state.answering.remove(request)
            left = state.newest is not None and state.newest.is_beside(request) and not state.answering
            if left and not (state.answered is not None and state.answered.is_beside(request)):
                state.let_linger(AFTER_CANCEL)

    def _state(self, document: Document) -> DocumentState:
        return self._states.setdefault(document.uri, DocumentState())

    def _find_cached(self, state: DocumentState, request: PendingRequest) -> list[CachedCompletion]:
        """Return the cached completions that fit, the one that was shown last first."""
        cached = self.cache.find(request.prompt)
        return sorted(cached, key=lambda each: state.shown is None or each is not state.shown.completion)

    def _find_or_generate(
        self, state: DocumentState, request: PendingRequest, generate: Generate, cached: list[CachedCompletion]
    ) -> CachedCompletion:
        """Return a cached or growing completion for the request, or start a new one."""
        streamed, self.from_cache = state.streamed, bool(cached)
        if cached:
            completion = cached[0]
            self._counters.from_memory += 1
            if not completion.growing and not completion.done and not completion.resumed:
                self._resume(state, request, generate, completion)
            elif streamed is completion:
                state.keep()
            return completion
        if streamed is not None and streamed.growing and streamed.fits(request.prompt):
            state.keep()
            return streamed
        state.stop()
        completion = CachedCompletion(request.prompt)
        self._stream(state, request, completion, generate(request, [completion], 0))
        completion.listeners.append(lambda: self._grown(request.document, completion))
        self.cache.add([completion])
        return completion

    def _resume(
        self, state: DocumentState, request: PendingRequest, generate: Generate, completion: CachedCompletion
    ) -> None:
        """Continue a stopped completion after its current text, if a prompt can hold that."""
        state.stop()
        completion.resumed = True
        suggestion = Suggestion.of(completion, request.prompt)
        if (prompt := request.prompt.extended(suggestion.rest)) is not None:
            offset = request.offset + len(suggestion.rest)
            onward = replace(request, prompt=prompt, offset=offset, explicit=False, resumes=True)
            self._stream(state, request, completion, generate(onward, [completion], 0), suggestion.typed)

    def _stream(
        self,
        state: DocumentState,
        request: PendingRequest,
        completion: CachedCompletion,
        task: asyncio.Task[None],
        typed: int = 0,
    ) -> None:
        self._counters.from_daemon += 1
        state.streamed, state.task = completion, task
        # No edit of the document can follow a prompt that contains a selected item.
        state.typed_prefix = TypedPrefix(-1) if request.selected else TypedPrefix(request.offset - typed, typed)

    async def _wait(
        self, state: DocumentState, request: PendingRequest, completion: CachedCompletion, budget: float, several: int
    ) -> None:
        """Wait until the completion is complete or the budget is spent.

        Any text that can be shown is enough if the client extends it later, or if the completion was shown before. For
        other clients the first words would stay on the screen for as long as the user rests. Raises ContentModified.
        """
        recent = request.received - request.document.changed < RECENT and not request.explicit
        end = (request.document.changed if recent else request.received) + budget
        alternatives = state.alternatives if several > 1 else []
        any_text = request.grows or (state.shown is not None and state.shown.completion is completion)
        awaited = [completion, *alternatives]
        for each in awaited:
            each.listeners.append(request.wake.set)
        try:
            while True:
                if request.stale:
                    raise ContentModified
                enough = not (completion.growing and completion.fits(request.prompt)) or (
                    any_text and Suggestion.of(completion, request.prompt).shown
                )
                if enough and not any(alternative.growing for alternative in alternatives):
                    return
                left = end - self._clock()
                if left <= 0:
                    self._counters.cut_by_the_clock += 1
                    return
                request.wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await request.wake.wait()
        finally:
            for each in awaited:
                each.listeners.remove(request.wake.set)

    def _suggestions(
        self, state: DocumentState, request: PendingRequest, completion: CachedCompletion, most: int
    ) -> list[Suggestion]:
        others = (other for other in self._find_cached(state, request) if other is not completion)
        suggestions: list[Suggestion] = []
        for each in (completion, *others):
            suggestion = Suggestion.of(each, request.prompt)
            if suggestion.shown and not any(suggestion.shown == other.shown for other in suggestions):
                suggestions.append(suggestion)
        state.answered, state.extended_at = request, self._clock()
        state.shown = suggestions[0] if suggestions else Suggestion(completion, "", "")
        return suggestions[:most]

    def _grown(self, document: Document, completion: CachedCompletion) -> None:
        """Notify the client of more text if its last answer showed this completion."""
        state = self._states.get(document.uri)
        if state is None or state.answered is None or state.shown is None or state.answering:
            return
        if state.shown.completion is not completion or state.answered.stale:
            return
        shown = Suggestion.of(completion, state.answered.prompt).shown
        if len(shown) <= len(state.shown.shown) or (state.notified and not completion.done):
            return
        wait = state.extended_at + MORE_EVERY - self._clock()
        if wait > 0 and not completion.done:
            if state.notify_later is None:
                loop = asyncio.get_running_loop()
                state.notify_later = loop.call_later(wait, self._grown_later, document, completion)
            return
        state.notified, state.extended_at = self._tell_more(document), self._clock()

    def _grown_later(self, document: Document, completion: CachedCompletion) -> None:
        state = self._states.get(document.uri)
        if state is not None:
            state.notify_later = None
            self._grown(document, completion)


def _is_longer(shown: Suggestion | None, before: Suggestion) -> bool:
    """Return whether `shown` is the same completion as `before` with more text shown."""
    return shown is not None and shown.completion is before.completion and len(shown.shown) > len(before.shown)
