"""Continuations computed before they are asked for: behind the text that a document was just given, as if it had been
accepted. Knows requests and what was told of them; knows no engine and no order of work.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from codespec.server.tickets import Ask, Failed, Message, Priority
from codespec.types import CompletionRequest, DoneEvent, Owner, TextEvent

SECONDS = 60.0  # that a continuation is kept
MOST = 32  # documents
NOTE = "computed before it was asked for"


@dataclass(frozen=True, slots=True)
class Kept:
    """A finished continuation, all that is to be told of it, and when it was finished."""

    request: CompletionRequest
    messages: Sequence[Message]
    made: float


class Ahead:
    """The continuations at hand, one a document."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Owner, Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, ask: Ask, messages: Sequence[Message], now: float) -> None:
        """Takes a finished continuation; the document's last one goes."""
        for message in messages:
            if isinstance(message, DoneEvent):
                message.completion.stats.notes.append(NOTE)
        self._kept.pop(ask.owner, None)
        self._kept[ask.owner] = Kept(ask.request, list(messages), now)
        if len(self._kept) > MOST:
            self._kept.popitem(last=False)

    def take(self, ask: Ask, now: float) -> Sequence[Message]:
        """What answers an ask; nothing where none does. A document's newer text takes the continuation away."""
        if ask.priority != Priority.INTERACTIVE:
            return []
        kept = self._kept.pop(ask.owner, None)
        if kept is None or now > kept.made + SECONDS or not is_answered_by(ask, kept.request):
            return []
        return kept.messages


def is_answered_by(ask: Ask, request: CompletionRequest) -> bool:
    """Whether a request, computed without a limit of time, answers an ask: they are the same but for that limit, and
    where a client sends only the last part of a long prefix, for where it begins.
    """
    asked, moved = ask.request, ask.request.prefix_offset - request.prefix_offset
    if ask.after_first_ms is not None or moved < 0 or request.prefix[moved:] != asked.prefix:
        return False
    return request == replace(asked, prefix=request.prefix, prefix_offset=request.prefix_offset, deadline_ms=None)


def follow_up(ask: Ask, messages: Sequence[Message]) -> Ask | None:
    """What the editor asks next if this text is accepted; None where there is nothing to accept, or no saying what."""
    request = ask.request
    if (
        ask.priority != Priority.INTERACTIVE
        or not ask.owner.document
        or request.n != 1
        or ask.after_first_ms is not None
    ):
        return None
    reasons = [message.completion.finish_reason for message in messages if isinstance(message, DoneEvent)]
    text = "".join(message.text for message in messages if isinstance(message, TextEvent))
    if reasons not in (["stop"], ["length"]) or not text.strip() or any(isinstance(m, Failed) for m in messages):
        return None
    return Ask(replace(request, prefix=request.prefix + text, deadline_ms=None), Priority.AHEAD)
