"""Prefetched completions: continuations of a finished text, computed as if the editor had accepted it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, replace

from codespec.contract.types import CompletionRequest, DoneEvent, Owner, TextEvent
from codespec.engine.queue import Priority
from codespec.server.handles import Failed, Message, RequestHandle

MAX_AGE = 60.0  # seconds
MAX_DOCUMENTS = 32
NOTE = "prefetched: computed before it was requested"


@dataclass(frozen=True, slots=True)
class Prefetched:
    """A finished completion, all its messages, and its completion time in seconds."""

    request: CompletionRequest
    messages: Collection[Message]
    finished: float


class PrefetchCache:
    """Prefetched completions, at most one per document."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Owner, Prefetched] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, request: CompletionRequest, messages: Collection[Message], now: float) -> None:
        """Store a finished completion, replacing the document's previous one."""
        for message in messages:
            if isinstance(message, DoneEvent):
                message.completion.stats.notes.append(NOTE)
        self._kept.pop(request.owner, None)
        self._kept[request.owner] = Prefetched(request, list(messages), now)
        if len(self._kept) > MAX_DOCUMENTS:
            self._kept.popitem(last=False)

    def take(self, handle: RequestHandle, now: float) -> Collection[Message]:
        """Return the messages that answer a request, or an empty list.

        Any newer request for text drops the document's prefetched completion.
        """
        if handle.priority != Priority.INTERACTIVE:
            return []
        kept = self._kept.pop(handle.owner, None)
        if kept is None or now > kept.finished + MAX_AGE or not answers(kept.request, handle):
            return []
        return kept.messages


def answers(prefetched: CompletionRequest, handle: RequestHandle) -> bool:
    """Return whether a prefetched request, which has no time limit, answers this one.

    They must be equal except for that limit, the client's prediction, and the start of the prefix if the client sends
    only the last part of a long one.
    """
    request, moved = handle.request, handle.request.prefix_offset - prefetched.prefix_offset
    if handle.after_first is not None or moved < 0 or prefetched.prefix[moved:] != request.prefix:
        return False
    whole = replace(request, prefix=prefetched.prefix, prefix_offset=prefetched.prefix_offset, deadline_ms=None)
    return prefetched == replace(whole, prediction="")


def follow_up(request: CompletionRequest, messages: Collection[Message]) -> CompletionRequest | None:
    """Return the request that the editor will send if this text is accepted.

    Return None if there is no text to accept, or if there are several choices.
    """
    if not request.document or request.n != 1:
        return None
    reasons = [message.completion.finish_reason for message in messages if isinstance(message, DoneEvent)]
    text = "".join(message.text for message in messages if isinstance(message, TextEvent))
    if reasons not in (["stop"], ["length"]) or not text.strip() or any(isinstance(m, Failed) for m in messages):
        return None
    return replace(request, prefix=request.prefix + text, prediction="", deadline_ms=None)
