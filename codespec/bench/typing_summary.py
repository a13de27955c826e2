"""From rows of what somebody saw while typing to figures: waiting times, what was right, what was wasted."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from codespec.bench.bootstrap import RESAMPLES, SEED, ratio_interval
from codespec.bench.serve_summary import percentiles

OFF, ON, TAKING = "off", "on", "taking"  # without and with speculation; with it and with Tab
LOOK_MS = 650.0  # when it is looked what is there: 600 ms after a change, and time for the answer that the clock sends

Row = Mapping[str, Any]


def summarize(sessions: Sequence[Row]) -> dict[str, Any]:
    """The figures of each cell, and what speculation brings."""
    cells = {cell: [row for row in sessions if row["cell"] == cell] for cell in (OFF, ON, TAKING)}
    return {
        "cells": {cell: figures(rows) for cell, rows in cells.items() if rows},
        "available": available(cells[OFF], cells[ON]),
    }


def mismatches(sections: Mapping[str, Any]) -> list[str]:
    """The places at which both daemons, asked outright, wrote different texts although they began in exact mode; or
    that one left the mode, for daemons compare texts themselves.
    """
    found = []
    for shape, section in sections.items():
        texts = section.get("texts")
        if texts and promise_the_same(texts):
            found += [f"{place}, {shape}" for place in texts["differing"]]
            found += [f"a daemon left exact mode, {shape}"] if texts["modes_after"] != texts["modes"] else []
    return found


def promise_the_same(texts: Mapping[str, Any]) -> bool:
    """Whether both daemons began in exact mode."""
    return set(texts["modes"].values()) == {"exact"}


def figures(sessions: Sequence[Row]) -> dict[str, Any]:
    """One cell's, as plain JSON values. Times are milliseconds from a change; superseded questions have none."""
    asked = [row for session in sessions for row in session["questions"]]
    first = [row for row in asked if row["cause"] != "more"]
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
        "more": len(asked) - len(first),
        "answer_ms": percentiles([row["answered_ms"] for row in answered]),
        "after_tab_ms": percentiles([row["answered_ms"] for row in answered if row["cause"] == "tab"]),
        "without_request": _share(row["work"] != "asked" for row in answered),
        "without_work": _share(row["work"] == "none" for row in answered),
        "cut": sum(session["counters"]["cutByTheClock"] for session in sessions) / max(1, len(answered)),
        "matching_per_question": shown / max(1, len(answered)),
        "matching_per_second": shown / seconds,
        **_tokens(sessions),
        **_as_unhurried(sessions, answered),
        "overhead": overhead(asked),
    }


def by_change(session: Row) -> dict[int, Row]:
    """By characters typed: the answer to a change, or to the question for more of it, of which the most is right."""
    best: dict[int, Row] = {}
    for row in session["questions"]:
        if row["answered_ms"] is not None and row["matching"] >= best.get(row["at"], row)["matching"]:
            best[row["at"]] = row
    return best


def overhead(asked: Sequence[Row]) -> dict[str, Any]:
    """The language server's own milliseconds: to the daemon, back from the end of its text, both together, and whole
    where nothing had to be asked and nothing was waited for."""
    both = [row for row in asked if "back_ms" in row]
    remembered = [row for row in asked if row["work"] == "none" and row["answered_ms"] is not None]
    return {
        "there": percentiles([row["there_ms"] for row in asked if "there_ms" in row]),
        "back": percentiles([row["back_ms"] for row in both]),
        "both": percentiles([row["there_ms"] + row["back_ms"] for row in both]),
        "remembered": percentiles([row["answered_ms"] - row["asked_ms"] for row in remembered]),
        "questions": len(both),
    }


def available(off: Sequence[Row], on: Sequence[Row]) -> dict[str, Any] | None:
    """Characters that are there 600 ms after a change, wherever nobody typed on before, at the same places without and
    with speculation; None where there is no pair."""
    pairs = [pair for plain, guessed in _pairs(off, on) for pair in _available(plain, guessed)]
    if not pairs:
        return None
    sums = ratio_interval([guessed for _, guessed in pairs], [plain for plain, _ in pairs])
    return {
        "pauses": len(pairs),
        "off": median(plain for plain, _ in pairs),
        "on": median(guessed for _, guessed in pairs),
        "median_ratio": _median_ratio(pairs),
        "sum_ratio": sums.as_dict() if sums else None,
    }


def _pairs(off: Sequence[Row], on: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    by_place = {session["place"]: session for session in on}
    return ((session, by_place[session["place"]]) for session in off if session["place"] in by_place)


def _available(off: Row, on: Row) -> list[tuple[int, int]]:
    plain, guessed = there(off), there(on)
    return [(plain[at], guessed[at]) for at in sorted(plain.keys() & guessed.keys())]


def there(session: Row) -> dict[int, int]:
    """By characters typed, where nobody typed on before LOOK_MS: the characters shown by then."""
    found: dict[int, int] = {}
    for row in session["questions"]:
        if row["pause_ms"] is None or row["pause_ms"] >= LOOK_MS:
            in_time = row["answered_ms"] is not None and row["answered_ms"] <= LOOK_MS
            found[row["at"]] = max(found.get(row["at"], 0), row["length"] if in_time else 0)
    return found


def _median_ratio(pairs: Sequence[tuple[int, int]]) -> dict[str, float] | None:
    """The ratio of the medians, on to off, with a 95 % bootstrap interval over pauses; None where off's is nothing."""
    dice, ratios = random.Random(SEED), []
    for drawn in (list(pairs), *(dice.choices(pairs, k=len(pairs)) for _ in range(RESAMPLES))):
        below = median(plain for plain, _ in drawn)
        if below:
            ratios.append(median(guessed for _, guessed in drawn) / below)
    if not ratios or not median(plain for plain, _ in pairs):
        return None
    ratio, ordered = ratios[0], sorted(ratios[1:])
    at = [ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.025, 0.975)]
    return {"ratio": ratio, "low": at[0], "high": at[1]}


def _tokens(sessions: Sequence[Row]) -> dict[str, Any]:
    """What the target wrote, and how much of it nobody saw or nobody wanted."""
    written = sum(session["tokens"] for session in sessions)
    useful = sum(session["useful_tokens"] for session in sessions)
    return {"tokens": written, "wasted": 1 - min(1.0, useful / written) if written else 0.0}


def _as_unhurried(sessions: Sequence[Row], answered: Sequence[Row]) -> dict[str, Any]:
    """Of the questions that were not superseded and that an unhurried engine answers with something: the share that
    got something. Some of the empty answers were asked again; they stand for all."""
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
