"""Sentences about the last completion, for whoever asks why it is as it is. Knows the daemon's last event of a
completion; knows no protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

REASONS = {"length": "it is as long as codespec.maxTokens allows", "deadline": "its time was over"}


def explain(done: Mapping[str, Any], reason: str, milliseconds: float | None) -> dict[str, Any]:
    """The event itself with `sentences`. `reason` is why the document in use gets nothing ("" if it gets something),
    `milliseconds` the last question's time to answer."""
    return {**done, "sentences": [sentence for sentence in _sentences(done, reason, milliseconds) if sentence]}


def last(done: Mapping[str, Any]) -> dict[str, Any] | None:
    """The last completion in four numbers, for a status line; None before the first one."""
    stats = done.get("stats")
    if not isinstance(stats, Mapping):
        return None
    counts = {name: stats.get(name, 0) for name in ("committed", "drafted", "accepted")}
    return {**counts, "speedUp": speed_up(stats)}


def _sentences(done: Mapping[str, Any], reason: str, milliseconds: float | None) -> Iterator[str]:
    yield reason
    if milliseconds is not None:
        yield f"The last answer took {milliseconds:.0f} ms."
    stats = done.get("stats")
    if not isinstance(stats, Mapping):
        yield "The daemon has completed nothing yet."
        return
    yield from _of_work(done, stats)
    ended = stats.get("ended") or REASONS.get(str(done.get("finish_reason")))
    yield f"The text ends where it does because {ended}." if ended else ""
    for note in stats.get("notes", []):
        yield _as_sentence(str(note))


def _as_sentence(note: str) -> str:
    """A note of the daemon's, with the setting's name for the field's."""
    said = note.replace("max_tokens", "the setting codespec.maxTokens", 1)
    return f"{said[:1].upper()}{said[1:]}."


def _of_work(done: Mapping[str, Any], stats: Mapping[str, Any]) -> Iterator[str]:
    """What was read, guessed and gained."""
    prompt, new = stats.get("prompt_tokens", 0), done.get("new_tokens", 0)
    if prompt:
        yield f"Of the prompt's {prompt} tokens {new} had to be read."
    drafted, accepted = stats.get("drafted", 0), stats.get("accepted", 0)
    yield f"{stats.get('committed', 0)} tokens were written in {stats.get('rounds', 0)} rounds."
    if drafted:
        sources = [f"{name} {_share(counts)}" for name, counts in stats.get("by_source", {}).items()]
        yield f"{accepted} of {drafted} drafted tokens were right{_in_brackets(sources)}."
    faster = speed_up(stats)
    if faster is not None:
        yield f"By the cost table that was {faster:.1f} × as fast as plain decoding."


def speed_up(stats: Mapping[str, Any]) -> float | None:
    """How many times as fast as plain decoding it was; None where that is not known."""
    decode, plain = stats.get("decode_ms", 0.0), stats.get("plain_ms", 0.0)
    return round(plain / decode, 2) if decode and plain else None


def _share(counts: Mapping[str, Any]) -> str:
    return f"{counts.get('accepted', 0)} of {counts.get('drafted', 0)}"


def _in_brackets(parts: Sequence[str]) -> str:
    return f" ({', '.join(parts)})" if parts else ""
