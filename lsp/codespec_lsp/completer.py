"""Answer completion requests from the cache or the daemon within a time budget.

A request whose document has changed since its arrival is answered with ContentModified. A completion that is unfinished
at the end of the budget keeps growing, and the client is notified of the additional text.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pygls.exceptions import JsonRpcException

from codespec_lsp.buffer import Edit
from codespec_lsp.completions import MAX_AHEAD, CachedCompletion, CompletionCache, EditRange, Suggestion, TypedPrefix
from codespec_lsp.documents import Document, now
from codespec_lsp.prompt import TextAround
from codespec_lsp.status import Counters

# Seconds that a stream continues without a waiting request. After a change, VS Code sends a request within 50 ms,
# Neovim within 200 ms.
AFTER_CANCEL, AFTER_EDIT = 0.15, 0.4
MORE_INTERVAL_S = 0.1  # minimum seconds from an answer or a `more` notification to the next notification
RECENT_CHANGE_S = 0.3  # seconds within which a request counts as triggered by the last change


class ContentModified(JsonRpcException):
    """Raised for a request whose document has changed or that a newer request has superseded."""

    CODE = -32801
    MESSAGE = "The document changed while its completion was being computed."


@dataclass(eq=False, slots=True)
class PendingRequest:
    """A client's completion request; `received` is the time and `revision` the document's revision on arrival.

    `offset` is the cursor's offset in code points. An inline item replaces `edit_range`, and a list item replaces
    `word`. `selected` is set if an item of the client's completion list is selected; the cursor is then after that
    item. `grows` is set if the client can extend a suggestion, so the first words are enough. `resumes` is set if the
    request continues a stopped completion, and `in_magic` if the cursor is in a magic command of a notebook cell.
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
        """Whether this request is obsolete: its document has changed, or a newer request has superseded it."""
        return self.superseded or self.document.revision != self.revision

    @property
    def in_document(self) -> bool:
        """Whether the prompt contains only text that is already in the editor."""
        return not self.selected and not self.resumes

    def is_beside(self, other: PendingRequest | None) -> bool:
        """Return whether two requests need the same answer, such as requests for a menu and for ghost text."""
        place = (self.revision, self.offset, self.selected, self.edit_range)
        return other is not None and place == (other.revision, other.offset, other.selected, other.edit_range)


@dataclass(eq=False, slots=True)
class DocumentState:
    """One document's requests, streams and last answer. The user has typed the `typed_prefix` of `streamed`."""

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
    notified: bool = False  # whether the client was notified of more text since its last request
    extended_at: float = 0.0  # the event loop's time of the last answer or notification
    notify_later: asyncio.TimerHandle | None = None

    def supersede(self, by: PendingRequest | None = None) -> None:
        """Mark the open requests as superseded, except requests equivalent to `by`."""
        for request in [*self.answering, self.newest]:
            if request is not None and not request.is_beside(by):
                request.superseded = True
                request.wake.set()

    def let_linger(self, seconds: float) -> None:
        """Stop all streams after `seconds`, unless a request needs the streams before then."""
        if self.task is not None and not self.task.done():
            self.keep()
            self.linger = asyncio.get_running_loop().call_later(seconds, self.stop)

    def keep(self) -> None:
        """Cancel the stop that `let_linger` scheduled, because a request needs the streams."""
        if self.linger is not None:
            self.linger.cancel()

    def stop(self) -> None:
        self.keep()
        if self.task is not None:
            self.task.cancel()
        self.streamed = self.task = None
        self.stop_alternatives()

    def stop_alternatives(self) -> None:
        if self.alternatives_task is not None:
            self.alternatives_task.cancel()
        self.alternatives, self.alternatives_task = [], None


Generate = Callable[[PendingRequest, list[CachedCompletion], int], "asyncio.Task[None]"]


class Completer:
    """Answers the completion requests of one client.

    `generate` starts a stream for completions, given the number of alternatives, or 0 for the best completion.
    `tell_more` notifies the client of a document's longer suggestion, or returns False if the settings forbid that.
    """

    def __init__(self, generate: Generate, tell_more: Callable[[Document], bool], counters: Counters) -> None:
        self.from_cache = False  # whether the last answer came from the cache
        self.cache = CompletionCache()
        self._generate, self._tell_more, self._counters = generate, tell_more, counters
        self._states = defaultdict[str, DocumentState](DocumentState)

    def receive(self, request: PendingRequest) -> None:
        """Register a new request, and mark older requests for its document as superseded unless they are equivalent."""
        state = self._states[request.document.uri]
        state.supersede(request)
        state.newest = request

    def prompt_at(self, document: Document, offset: int) -> TextAround | None:
        """Return the prompt at an offset if the user has typed the streamed completion up to that offset, else None."""
        state = self._states[document.uri]
        if state.streamed is None or state.typed_prefix.tip != offset:
            return None
        return state.streamed.prompt.extended(
            state.streamed.text[: state.typed_prefix.typed] + state.typed_prefix.ahead
        )

    def edited(self, document: Document, edit: Edit) -> None:
        """Handle an edit of a document, and stop the streamed completion if the edit contradicts it."""
        state = self._states[document.uri]
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
        state = self._states.pop(document.uri, None)
        if state is not None:
            state.supersede()
            state.stop()
        self.cache.forget(document.uri)

    async def answer(self, request: PendingRequest, budget: float, alternatives: int) -> list[Suggestion]:
        """Wait at most `budget` seconds, and return the suggestions to show, best first. Raises ContentModified."""
        state = self._states[request.document.uri]
        if request.stale or not request.is_beside(state.newest):
            # The second condition finds the older of two equivalent requests, which a newer one did not supersede.
            raise ContentModified
        was_notified = state.notified and state.answered is not None and state.answered.revision == request.revision
        several = alternatives if request.explicit and not was_notified else 1
        state.answering.append(request)
        state.notified = False
        try:
            cached = self._find_cached(state, request)
            completion = self._find_or_generate(state, request, cached)
            missing = several - max(1, len(cached))
            if missing > 0 and not (completion.done and not completion.text):
                state.stop_alternatives()
                state.alternatives = [CachedCompletion(request.prompt) for _ in range(missing)]
                state.alternatives_task = self._generate(request, state.alternatives, missing)
                self.cache.add(state.alternatives)
            await self._wait(state, request, completion, budget, several)
            if not completion.fits(request.prompt):  # the user typed ahead of it, and it grew differently
                completion = self._find_or_generate(state, request, self._find_cached(state, request))
                await self._wait(state, request, completion, budget, several)
            before = state.shown if request.is_beside(state.answered) else None
            suggestions = self._suggestions(state, request, completion, several)
            after = state.shown if not was_notified else None
            if before and after and after.completion is before.completion and len(after.shown) > len(before.shown):
                # An equivalent request got less text, and clients are not notified while a request waits.
                self._tell_more(request.document)
            return suggestions
        finally:
            state.answering.remove(request)
            if request.is_beside(state.newest) and not state.answering and not request.is_beside(state.answered):
                state.let_linger(AFTER_CANCEL)

    def _find_cached(self, state: DocumentState, request: PendingRequest) -> list[CachedCompletion]:
        """Return the cached completions that fit a request, starting with the completion that was shown last."""
        cached = self.cache.find(request.prompt)
        return sorted(cached, key=lambda each: state.shown is None or each is not state.shown.completion)

    def _find_or_generate(
        self, state: DocumentState, request: PendingRequest, cached: list[CachedCompletion]
    ) -> CachedCompletion:
        streamed, self.from_cache = state.streamed, bool(cached)
        if cached:
            completion = cached[0]
            self._counters.from_memory += 1
            if not completion.growing and not completion.done and not completion.resumed:
                self._resume(state, request, completion)
            elif streamed is completion:
                state.keep()
            return completion
        if streamed is not None and streamed.growing and streamed.fits(request.prompt):
            state.keep()
            return streamed
        state.stop()
        completion = CachedCompletion(request.prompt)
        self._stream(state, request, completion)
        completion.listeners.append(lambda: self._grown(request.document, completion))
        self.cache.add([completion])
        return completion

    def _resume(self, state: DocumentState, request: PendingRequest, completion: CachedCompletion) -> None:
        """Continue a stopped completion after its current text, unless the prompt becomes too long."""
        state.stop()
        completion.resumed = True
        suggestion = Suggestion.of(completion, request.prompt)
        if (prompt := request.prompt.extended(suggestion.rest)) is not None:
            offset = request.offset + len(suggestion.rest)
            onward = replace(request, prompt=prompt, offset=offset, explicit=False, resumes=True)
            self._stream(state, onward, completion, suggestion.typed)

    def _stream(
        self, state: DocumentState, request: PendingRequest, completion: CachedCompletion, typed: int = 0
    ) -> None:
        """Stream more of a completion for a request after its current text, of which the user has typed a part."""
        self._counters.from_daemon += 1
        start = request.offset - len(completion.text)
        # A prompt with a selected item is not in the document, so no edit can follow it.
        state.typed_prefix = TypedPrefix(-1) if request.selected else TypedPrefix(start, typed)
        state.streamed, state.task = completion, self._generate(request, [completion], 0)

    async def _wait(
        self, state: DocumentState, request: PendingRequest, completion: CachedCompletion, budget: float, several: int
    ) -> None:
        """Wait until the completion is complete or the budget is spent. Raises ContentModified.

        The first words are enough if the client can extend them later or if the completion was shown before. Clients
        that can't extend a suggestion would show only the first words until the user types again.
        """
        recent = request.received - request.document.changed < RECENT_CHANGE_S and not request.explicit
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
                left = end - now()
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
        state.answered, state.extended_at = request, now()
        state.shown = suggestions[0] if suggestions else Suggestion(completion, "", "")
        return suggestions[:most]

    def _grown(self, document: Document, completion: CachedCompletion) -> None:
        """Notify the client that a completion has grown, if the last answer showed that completion."""
        state = self._states.get(document.uri)
        if state is None or state.answered is None or state.shown is None or state.answering:
            return
        if state.shown.completion is not completion or state.answered.stale:
            return
        shown = Suggestion.of(completion, state.answered.prompt).shown
        if len(shown) <= len(state.shown.shown) or (state.notified and not completion.done):
            return
        wait = state.extended_at + MORE_INTERVAL_S - now()
        if wait > 0 and not completion.done:
            if state.notify_later is None:
                loop = asyncio.get_running_loop()
                state.notify_later = loop.call_later(wait, self._grown_later, document, completion)
            return
        state.notified, state.extended_at = self._tell_more(document), now()

    def _grown_later(self, document: Document, completion: CachedCompletion) -> None:
        state = self._states.get(document.uri)
        if state is not None:
            state.notify_later = None
            self._grown(document, completion)
