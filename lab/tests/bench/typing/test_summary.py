"""Conversion of a typist's sessions to rows and figures."""

from __future__ import annotations

from typing import Any

import pytest
from codespec_lab.bench.statistics import common
from codespec_lab.bench.typing.editor import Stream
from codespec_lab.bench.typing.scenario import report
from codespec_lab.bench.typing.summary import available, figures, record, summarize, useful_tokens
from codespec_lab.bench.typing.typist import EditorRequest, Typed
from codespec_lab.bench.typing_sites import TypingSite
from hypothesis import given
from hypothesis import strategies as st

SITE = TypingSite("p/a.py", "python", "x = 1\n    ab = cd\n    e\ny = 2\n", 10, 23)


@given(st.text("ab"), st.text("ab"))
def test_what_two_texts_begin_with(one: str, other: str) -> None:
    length = common(one, other)
    assert one[:length] == other[:length] and (one + "\0")[length] != (other + "\1")[length]


def stream(at: int, text: str, received: float = 0.0, tokens: int = 4, done: float | None = None) -> Stream:
    return Stream(received, SITE.text[: SITE.begin + at], 0, text, tokens, done=done, ended=done)


def asked(at: int, text: str | None, cause: str = "key", changed: float = 0.0, took: float = 0.1) -> EditorRequest:
    answered = None if text is None else changed + took
    return EditorRequest(at, cause, changed, changed + 0.05, answered, text or "")


@pytest.mark.parametrize(
    ("writing", "shown", "useful"),
    [
        (stream(1, "b = xx"), [asked(1, "b = xx")], 4 * 4 / 6),  # right up to the x
        (stream(1, "b = xx"), [asked(1, "b ")], 4 * 2 / 6),  # and only part of it was shown
        (stream(1, "b = xx"), [asked(1, None)], 0.0),
        (stream(1, "no"), [asked(1, "no")], 0.0),
        (
            stream(1, "b = cd"),
            [asked(1, ""), asked(3, "= cd", changed=1.0)],
            4.0,
        ),  # shown later, while its text was typed
        (stream(1, "b = cd", received=9.0), [asked(1, "b = cd")], 0.0),  # another stream's
        (Stream(0.0, "x = 1\n    zz", 0, "ab", 2), [asked(0, "ab")], 0.0),  # after text that was never typed
    ],
)
def test_useful_tokens(writing: Stream, shown: list[EditorRequest], useful: float) -> None:
    assert useful_tokens(writing, shown, SITE) == pytest.approx(useful)


def test_rows() -> None:
    requests = [asked(1, "b = xx"), asked(2, None, changed=1.0), asked(3, "= cd", changed=2.0, took=0.06)]
    requests.append(asked(3, "= cd\n    e", "more", 2.0, 0.3))
    streams = [stream(1, "b = xx", 0.06, done=0.09), stream(2, "", 1.052), stream(3, "= cd", 1.9, done=2.2)]
    typed = Typed(4.0, 12, 0, {0: 0.2, 1: 1.0, 2: 1.0}, requests, streams, 10, {"cutByTheClock": 1})
    rows = record(typed, SITE)["questions"]
    assert [row["work"] for row in rows] == ["asked", "asked", "under way", "under way"]
    assert [row["matching"] for row in rows] == [4, 0, 4, 10]
    assert rows[0]["there_ms"] == rows[0]["back_ms"] == 10.0 and rows[0]["pause_ms"] == 1000.0
    assert rows[1]["there_ms"] == 2.0 and "back_ms" not in rows[1] and rows[1]["answered_ms"] is None
    assert rows[3]["pause_ms"] is None and rows[2]["answered_ms"] == 60.0


def row(at: int, length: int | None, matching: int = 0, **more: Any) -> dict[str, Any]:
    took = None if length is None else 100.0
    plain = {"at": at, "cause": "key", "asked_ms": 50.0, "answered_ms": took, "pause_ms": 200.0, "work": "none"}
    return {**plain, "length": length or 0, "matching": matching, **more}


def session(cell: str, *questions: dict[str, Any], place: str = "p", **more: Any) -> dict[str, Any]:
    plain = {"characters": 40, "seconds": 10.0, "keys": 40, "taken": 0, "tokens": 50, "useful_tokens": 10.0}
    counters = {"fromMemory": 0, "fromDaemon": 0, "cutByTheClock": 1}
    return {
        "cell": cell,
        "place": place,
        **plain,
        "counters": counters,
        "unhurried": {},
        "questions": questions,
        **more,
    }


def test_figures() -> None:
    asked_twice = [row(4, 3, 2, work="asked", there_ms=1.0, back_ms=0.5), row(4, 9, 8, cause="more", work="under way")]
    found = figures([session("on", row(1, 5, 5), row(2, None), row(3, 0), *asked_twice)])
    assert (found["questions"], found["superseded"], found["more"], found["empty"]) == (4, 1, 1, 1)
    assert found["without_request"] == found["without_work"] == pytest.approx(2 / 3)
    assert found["matching_per_question"] == pytest.approx(13 / 3) and found["matching_per_second"] == 1.3
    assert found["wasted"] == 0.8 and found["cut"] == pytest.approx(1 / 3)
    own = found["overhead"]
    assert (own["both"]["p50"], own["remembered"]["p50"], own["questions"]) == (1.5, 50.0, 1)


@pytest.mark.parametrize(("lengths", "share"), [({}, 1.0), ({"3": 0, "4": 0}, 1.0), ({"3": 7, "4": 0}, 0.5)])
def test_empty_answers_count_where_there_was_something_to_say(lengths: dict[str, int], share: float) -> None:
    found = figures([session("on", row(1, 5), row(3, 0), row(4, 0), unhurried=lengths)])
    assert found["as_unhurried"] == share


def test_what_is_there_after_600_ms() -> None:
    long = {"pause_ms": 900.0}
    off = session("off", row(1, 2), row(2, 4, **long), row(3, 6, pause_ms=None), row(4, None, **long))
    grown = row(2, 9, cause="more", answered_ms=640.0, **long)
    late = row(3, 50, cause="more", answered_ms=700.0, pause_ms=None)
    on = session("on", row(1, 99), row(2, 4, **long), grown, row(3, 9, pause_ms=None), late, row(4, 1, **long))
    found = available([off, session("off", row(1, 1, **long), place="q")], [on])
    assert found is not None and found["pauses"] == 3 and (found["off"], found["on"]) == (4, 9)
    assert found["median_ratio"]["ratio"] == 2.25 and found["sum_ratio"]["ratio"] == 19 / 10
    assert available([off], []) is None and available([off], [session("on", row(1, 3))]) is None
    nothing = available([session("off", row(1, 0, **long))], [session("on", row(1, 0, **long))])
    assert nothing is not None and nothing["median_ratio"] is None is nothing["sum_ratio"]


def test_report_of_a_section() -> None:
    leg = {"work": "asked", "there_ms": 1.0, "pause_ms": 900.0}
    sessions = [session(cell, row(1, length, back_ms=1.0, **leg)) for cell, length in (("off", 2), ("on", 4))]
    facts, settings = {"machine": {"cores": 2, "processor": "", "load": [0.0, 0.0]}}, {"dtype": "float32", "pace": 1.0}
    section = {"facts": facts, "configuration": settings, "note": "", "summary": summarize(sessions)}
    found = {"sections": {"own": section}}
    assert "characters 600 ms after a change, 1 pauses: median 2 and 4; × 2.00" in "\n".join(report(found))
