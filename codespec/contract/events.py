"""Events of a completion as JSON, for the daemon that sends them and the clients that read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from codespec.contract.types import Completion, Counts, DoneEvent, Event, RoundEvent, Stats, TextEvent

ROUND = [item.name for item in fields(RoundEvent) if item.name != "logprobs"]  # other endpoints report these


def to_json(event: Event, notes: Sequence[str] = (), *, token_ids: bool = False) -> tuple[str, dict[str, Any]]:
    """Return an event's name and data. `notes` explain how the request was read; `token_ids` adds ids to the end."""
    if isinstance(event, TextEvent):
        return "text", {"choice": event.choice, "text": event.text}
    if isinstance(event, RoundEvent):
        return "round", {name: getattr(event, name) for name in ROUND}
    completion, stats = event.completion, event.completion.stats
    done = {
        "choice": event.choice,
        "finish_reason": completion.finish_reason,
        "cached_tokens": stats.cached_tokens,
        "new_tokens": stats.prompt_tokens - stats.cached_tokens,
        "stats": {**stats.as_dict(), "notes": [*notes, *stats.notes]},
    }
    return "done", done | ({"token_ids": list(completion.token_ids)} if token_ids else {})


def from_json(name: str, data: Mapping[str, Any], text: str) -> Event | None:
    """Return an event; None for an unknown name. The end repeats the choice's whole `text`, which it does not hold."""
    if name == "text":
        return TextEvent(**data)
    if name == "round":
        return RoundEvent(**data)
    if name != "done":
        return None
    stats = dict(data["stats"])
    for table in ("by_source", "by_context"):
        stats[table] = {key: Counts(**counts) for key, counts in stats[table].items()}
    ids = tuple(data.get("token_ids", ()))
    return DoneEvent(data["choice"], Completion(text, ids, data["finish_reason"], Stats(**stats), data["choice"]))
