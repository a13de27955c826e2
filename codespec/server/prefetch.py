"""Prefetched completions: the engine continues a finished text as if the editor had accepted it, before anybody asks.

Knows requests and the messages that answer them; knows no engine and no schedule.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from codespec.server.handles import Failed, Message, Priority, RequestHandle
from codespec.types import CompletionRequest, DoneEvent, Owner, TextEvent

MAX_AGE = 60.0  # seconds
MAX_DOCUMENTS = 32
NOTE = "prefetched: computed before it was requested"


@dataclass(frozen=True, slots=True)
class Prefetched:
    """A finished completion, all messages of it, and when it was finished (seconds)."""

    request: CompletionRequest
    messages: Sequence[Message]
    finished: float


class PrefetchCache:
    """The prefetched completions, at most one a document."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Owner, Prefetched] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, request: CompletionRequest, messages: Sequence[Message], now: float) -> None:
        """Keeps a finished completion in place of the document's last one."""
        for message in messages:
            if isinstance(message, DoneEvent):
                message.completion.stats.notes.append(NOTE)
        self._kept.pop(request.owner, None)
        self._kept[request.owner] = Prefetched(request, list(messages), now)
        if len(self._kept) > MAX_DOCUMENTS:
            self._kept.popitem(last=False)

    def take(self, handle: RequestHandle, now: float) -> Sequence[Message]:
        """The messages that answer a request, or none. Any newer request for text of a document drops what was kept for
        it.
        """
        if handle.priority != Priority.INTERACTIVE:
            return []
        kept = self._kept.pop(handle.owner, None)
        if kept is None or now > kept.finished + MAX_AGE or not answers(kept.request, handle):
            return []
        return kept.messages


def answers(prefetched: CompletionRequest, handle: RequestHandle) -> bool:
    """Whether a prefetched request, which has no time limit, answers this one: they are the same except for that limit,
    the client's prediction and, where a client sends only the last part of a long prefix, for where the prefix begins.
    """
    request, moved = handle.request, handle.request.prefix_offset - prefetched.prefix_offset
    if handle.after_first_ms is not None or moved < 0 or prefetched.prefix[moved:] != request.prefix:
        return False
    whole = replace(request, prefix=prefetched.prefix, prefix_offset=prefetched.prefix_offset, deadline_ms=None)
    return prefetched == replace(whole, prediction="")


def follow_up(request: CompletionRequest, messages: Sequence[Message]) -> CompletionRequest | None:
    """What the editor requests next if this text is accepted; None where there is nothing to accept, or several texts
    to choose from.
    """
    if not request.document or request.n != 1:
        return None
    reasons = [message.completion.finish_reason for message in messages if isinstance(message, DoneEvent)]
    text = "".join(message.text for message in messages if isinstance(message, TextEvent))
    if reasons not in (["stop"], ["length"]) or not text.strip() or any(isinstance(m, Failed) for m in messages):
        return None
    return replace(request, prefix=request.prefix + text, prediction="", deadline_ms=None)
