"""Convert a typist's sessions to rows of plain numbers, one per request, and summarize these: waiting times, correct
characters, wasted tokens. Rows do not contain texts, only how much of them was correct.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from codespec_lab.bench.statistics import common, percentiles, ratio_interval
from codespec_lab.bench.typing.editor import Stream
from codespec_lab.bench.typing.typist import EditorRequest, Typed
from codespec_lab.bench.typing_sites import TypingSite

OFF, ON, TAKING = "off", "on", "taking"  # without speculation, with it, with it and Tab
AVAILABLE_MS = 650.0  # after a change: 600 ms, and time for the answer sent at the server's time limit

Row = Mapping[str, Any]


def record(typed: Typed, site: TypingSite) -> dict[str, Any]:
    """Return one session's rows; milliseconds count from the change before a request.

    A request's row: `at` (characters typed), `cause`, `asked_ms` (sent), `answered_ms` (None: superseded), `length` of
    the text shown, `matching` characters of it, `pause_ms` until the next change (None: no further change), `work`:
    "none" if the daemon did nothing while the request was open, "under way" if it was already writing, "asked" if it
    got a request; `there_ms` and `back_ms`: the language server's own time from the editor's request to the daemon's,
    and from the end of the text to the answer.
    """
    ends = [*(later.sent for _, later in pairwise(typed.requests)), float("inf")]
    return {
        "place": site.name,
        "characters": len(site.typed),
        "seconds": typed.seconds,
        "keys": typed.keys,
        "taken": typed.taken,
        "tokens": typed.tokens,
        "useful_tokens": sum(useful_tokens(stream, typed.requests, site) for stream in typed.streams),
        "counters": typed.counters,
        "questions": [_row(request, end, typed, site) for request, end in zip(typed.requests, ends, strict=True)],
    }


def _row(request: EditorRequest, end: float, typed: Typed, site: TypingSite) -> dict[str, Any]:
    """Return a request's row; `end` is the time of the next request."""
    answered = request.answered
    until = end if answered is None else answered
    own = next((stream for stream in typed.streams if request.sent <= stream.received <= until), None)
    busy = any(stream.received < request.sent < _end(stream) for stream in typed.streams)
    pause = typed.waits.get(request.at)
    found: dict[str, Any] = {
        "at": request.at,
        "cause": request.cause,
        "asked_ms": _ms(request.sent - request.changed),
        "answered_ms": None if answered is None else _ms(answered - request.changed),
        "length": len(request.text),
        "matching": common(request.text, site.typed[request.at :]),
        "pause_ms": None if pause is None else _ms(pause),
        "work": "asked" if own else "under way" if busy else "none",
    }
    if own is not None:
        found["there_ms"] = _ms(own.received - request.sent)
        if answered is not None and own.done is not None and own.done <= answered:
            found["back_ms"] = _ms(answered - own.done)
    return found


def useful_tokens(stream: Stream, requests: Sequence[EditorRequest], site: TypingSite) -> float:
    """Return the number of a stream's tokens, in proportion to its characters, that were shown before they were typed;
    0 if the stream continues a text that was never in the document.
    """
    at = stream.offset + len(stream.prefix) - site.begin
    in_document = site.text[stream.offset : site.begin + at] == stream.prefix
    if not stream.text or not 0 <= at <= len(site.typed) or not in_document:
        return 0.0
    right = at + common(stream.text, site.typed[at:])
    shown = [
        request.at + common(request.text, site.typed[request.at :])
        for request in requests
        if request.answered is not None and request.answered >= stream.received
    ]
    useful = min(right, max(shown, default=at)) - at
    return stream.tokens * max(0, useful) / len(stream.text)


def _end(stream: Stream) -> float:
    ends = [end for end in (stream.done, stream.ended) if end is not None]
    return min(ends, default=float("inf"))


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)


def summarize(sessions: Sequence[Row]) -> dict[str, Any]:
    """Return the figures of each cell, and the gain from speculation."""
    cells = {cell: [row for row in sessions if row["cell"] == cell] for cell in (OFF, ON, TAKING)}
    return {
        "cells": {cell: figures(rows) for cell, rows in cells.items() if rows},
        "available": available(cells[OFF], cells[ON]),
    }


def mismatches(sections: Mapping[str, Any]) -> list[str]:
    """List the sites at which the daemons wrote different texts although both began in exact mode, and whether one left
    that mode, since daemons compare texts themselves.
    """
    found = []
    for shape, section in sections.items():
        texts = section.get("texts")
        if texts and both_exact(texts):
            found += [f"{site}, {shape}" for site in texts["differing"]]
            found += [f"a daemon left exact mode, {shape}"] if texts["modes_after"] != texts["modes"] else []
    return found


def both_exact(texts: Mapping[str, Any]) -> bool:
    """Return whether both daemons began in exact mode."""
    return set(texts["modes"].values()) == {"exact"}


def figures(sessions: Sequence[Row]) -> dict[str, Any]:
    """Return one cell's figures as plain JSON values. Times are in ms from a change; superseded requests have none."""
    rows = [row for session in sessions for row in session["questions"]]
    first = [row for row in rows if row["cause"] != "more"]
    answered = [row for row in first if row["answered_ms"] is not None]
    seconds = sum(session["seconds"] for session in sessions)
    shown = sum(row["matching"] for session in sessions for row in by_change(session).values())
    return {
        "places": len(sessions),
        "seconds": seconds,
        "keys": sum(session["keys"] for session in sessions),
        "characters": sum(session["characters"] for session in sessions),
        "taken": sum(session["taken"] for session in sessions),
        "questions": len(first),
        "superseded": len(first) - len(answered),
        "more": len(rows) - len(first),
        "answer_ms": percentiles([row["answered_ms"] for row in answered]),
        "after_tab_ms": percentiles([row["answered_ms"] for row in answered if row["cause"] == "tab"]),
        "without_request": _share(row["work"] != "asked" for row in answered),
        "without_work": _share(row["work"] == "none" for row in answered),
        "cut": sum(session["counters"]["cutByTheClock"] for session in sessions) / max(1, len(answered)),
        "matching_per_question": shown / max(1, len(answered)),
        "matching_per_second": shown / seconds,
        **_tokens(sessions),
        **_as_unhurried(sessions, answered),
        "overhead": overhead(rows),
    }


def by_change(session: Row) -> dict[int, Row]:
    """Return, by characters typed, the answer with the most correct characters, including answers to "more"."""
    best: dict[int, Row] = {}
    for row in session["questions"]:
        if row["answered_ms"] is not None and row["matching"] >= best.get(row["at"], row)["matching"]:
            best[row["at"]] = row
    return best


def overhead(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the language server's own milliseconds: to the daemon, back from the end of its text, both together, and
    in total for answers from memory without a wait.
    """
    both = [row for row in rows if "back_ms" in row]
    remembered = [row for row in rows if row["work"] == "none" and row["answered_ms"] is not None]
    return {
        "there": percentiles([row["there_ms"] for row in rows if "there_ms" in row]),
        "back": percentiles([row["back_ms"] for row in both]),
        "both": percentiles([row["there_ms"] + row["back_ms"] for row in both]),
        "remembered": percentiles([row["answered_ms"] - row["asked_ms"] for row in remembered]),
        "questions": len(both),
    }


def available(off: Sequence[Row], on: Sequence[Row]) -> dict[str, Any] | None:
    """Return the characters shown 600 ms after a change at pauses of that length, at the same sites without and with
    speculation; None if there is no pair.
    """
    by_place = {session["place"]: session for session in on}
    compared = [(plain, by_place[plain["place"]]) for plain in off if plain["place"] in by_place]
    pairs = [pair for plain, drafted in compared for pair in _available(plain, drafted)]
    if not pairs:
        return None
    above, below = [drafted for _, drafted in pairs], [plain for plain, _ in pairs]
    return {
        "pauses": len(pairs),
        "off": median(below),
        "on": median(above),
        "median_ratio": ratio_interval(above, below, median),
        "sum_ratio": ratio_interval(above, below),
    }


def _available(off: Row, on: Row) -> list[tuple[int, int]]:
    plain, drafted = shown_in_time(off), shown_in_time(on)
    return [(plain[at], drafted[at]) for at in sorted(plain.keys() & drafted.keys())]


def shown_in_time(session: Row) -> dict[int, int]:
    """Return the characters shown within AVAILABLE_MS, by characters typed, if the next change came later or never."""
    found: dict[int, int] = {}
    for row in session["questions"]:
        if row["pause_ms"] is None or row["pause_ms"] >= AVAILABLE_MS:
            in_time = row["answered_ms"] is not None and row["answered_ms"] <= AVAILABLE_MS
            found[row["at"]] = max(found.get(row["at"], 0), row["length"] if in_time else 0)
    return found


def _tokens(sessions: Sequence[Row]) -> dict[str, Any]:
    """Return the number of tokens that the target wrote, and the share that was not seen or not correct."""
    written = sum(session["tokens"] for session in sessions)
    useful = sum(session["useful_tokens"] for session in sessions)
    return {"tokens": written, "wasted": 1 - min(1.0, useful / written) if written else 0.0}


def _as_unhurried(sessions: Sequence[Row], answered: Sequence[Row]) -> dict[str, Any]:
    """Return the share of answers with a text among the answers that would have one without a time limit, estimated
    from the requests with empty answers that were repeated without that limit.
    """
    something = sum(row["length"] > 0 for row in answered)
    probes = [length for session in sessions for length in session["unhurried"].values()]
    missed = (len(answered) - something) * _share(length > 0 for length in probes)
    return {
        "empty": len(answered) - something,
        "asked_again": len(probes),
        "empty_in_haste_only": sum(length > 0 for length in probes),
        "as_unhurried": something / max(1.0, something + missed),
    }


def _share(truths: Iterable[bool]) -> float:
    found = list(truths)
    return sum(found) / max(1, len(found))
