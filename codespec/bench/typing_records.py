"""What somebody saw who typed, as rows of plain numbers: nothing of a text is kept but how much of it was right.

Knows questions, streams and the text that was typed; knows no clock but theirs and adds nothing up.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from codespec.bench.typing_places import TypingPlace
from codespec.bench.typing_session import Question, Typed
from codespec.bench.typing_tap import Stream


def record(typed: Typed, place: TypingPlace) -> dict[str, Any]:
    """One place's rows; milliseconds count from the change that a question is about.

    A question: `at` (characters typed), `cause`, `asked_ms`, `answered_ms` (None: superseded), `length` of what was
    shown, `matching` characters of it, `pause_ms` until the next change (None: there was none), `work`: "none" if the
    daemon did nothing while it was open, "under way" if it was writing already, "asked" if it was asked; `there_ms` and
    `back_ms`: the language server's own time from the question to the daemon, and from the text's end to the answer.
    """
    ends = [*(later.asked for _, later in pairwise(typed.questions)), float("inf")]
    questions = [_question(question, end, typed, place) for question, end in zip(typed.questions, ends, strict=True)]
    return {
        "place": place.name,
        "characters": len(place.typed),
        "seconds": typed.seconds,
        "keys": typed.keys,
        "taken": typed.taken,
        "tokens": typed.tokens,
        "useful_tokens": sum(useful_tokens(stream, typed.questions, place) for stream in typed.streams),
        "counters": typed.counters,
        "questions": questions,
    }


def _question(question: Question, end: float, typed: Typed, place: TypingPlace) -> dict[str, Any]:
    """`end` is when the next question was asked."""
    answered = question.answered
    until = end if answered is None else answered
    own = next((stream for stream in typed.streams if question.asked <= stream.received <= until), None)
    busy = any(stream.received < question.asked < _end(stream) for stream in typed.streams)
    pause = typed.waits.get(question.at)
    found: dict[str, Any] = {
        "at": question.at,
        "cause": question.cause,
        "asked_ms": _ms(question.asked - question.changed),
        "answered_ms": None if answered is None else _ms(answered - question.changed),
        "length": len(question.text),
        "matching": common(question.text, place.typed[question.at :]),
        "pause_ms": None if pause is None else _ms(pause),
        "work": "asked" if own else "under way" if busy else "none",
    }
    if own is not None:
        found["there_ms"] = _ms(own.received - question.asked)
        if answered is not None and own.done is not None and own.done <= answered:
            found["back_ms"] = _ms(answered - own.done)
    return found


def useful_tokens(stream: Stream, questions: Sequence[Question], place: TypingPlace) -> float:
    """Tokens of a stream, in proportion to its characters, that were shown to somebody who then typed them."""
    at = stream.offset + len(stream.prefix) - place.begin
    if not stream.text or not 0 <= at <= len(place.typed) or not _is_there(stream, place, at):
        return 0.0
    right = at + common(stream.text, place.typed[at:])
    shown = [
        question.at + common(question.text, place.typed[question.at :])
        for question in questions
        if question.answered is not None and question.answered >= stream.received
    ]
    useful = min(right, max(shown, default=at)) - at
    return stream.tokens * max(0, useful) / len(stream.text)


def _is_there(stream: Stream, place: TypingPlace, at: int) -> bool:
    """Whether what the stream goes on from is what stood in the document, and not what might have come."""
    return place.text[stream.offset : place.begin + at] == stream.prefix


def common(one: str, other: str) -> int:
    """How many characters both begin with."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _end(stream: Stream) -> float:
    ends = [end for end in (stream.done, stream.ended) if end is not None]
    return min(ends, default=float("inf"))


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
