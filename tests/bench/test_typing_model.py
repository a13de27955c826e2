"""How somebody types, where, and what is reckoned from it: keys, places, rows and figures."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.bench import typing_hand
from codespec.bench.typing_hand import MEAN, MOST_PAUSE, SPREAD, strike
from codespec.bench.typing_places import LINES, TypingPlace, find_typing_places, in_turn
from codespec.bench.typing_records import common, record, useful_tokens
from codespec.bench.typing_report import charts, report
from codespec.bench.typing_session import Question, Typed, first_line, position, shown_text
from codespec.bench.typing_summary import available, figures, summarize
from codespec.bench.typing_tap import Stream
from codespec.corpus.documents import Document, write_documents
from codespec.errors import ConfigError

CODE = "def total_area(circles):\n    areas = [circle.area() for circle in circles]\n    return sum(areas)\n" * 40


@given(st.text(), st.integers(), st.floats(0.1, 10.0))
def test_what_is_typed_is_the_text(text: str, seed: int, pace: float) -> None:
    keys = strike(text, seed, pace)
    assert "".join(key.text for key in keys) == text
    assert all(before.end == key.start for before, key in pairwise(keys)) and (not keys or keys[0].start == 0)
    assert all(key.text and key.wait > 0.0 for key in keys)
    assert keys == strike(text, seed, pace)


@given(st.text(max_size=50), st.integers(), st.floats(1.1, 9.0))
def test_pace(text: str, seed: int, pace: float) -> None:
    slow, fast = strike(text, seed), strike(text, seed, pace)
    assert [key.wait for key in fast] == pytest.approx([key.wait / pace for key in slow])


def test_an_editor_indents() -> None:
    assert [key.text for key in strike("a:\n    b\n\n\tc", 0)] == ["a", ":", "\n    ", "b", "\n", "\n\t", "c"]


def test_times_are_the_published_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typing_hand, "WORD_PAUSES", 0.0)
    monkeypatch.setattr(typing_hand, "LINE_PAUSE", 0.0)
    waits = [key.wait for key in strike(CODE, 1)]
    assert fmean(waits) == pytest.approx(MEAN, rel=0.05)
    assert pstdev(waits) / fmean(waits) == pytest.approx(SPREAD, rel=0.25)  # kinds of keys differ as well


def test_keys_come_in_bursts() -> None:
    keys = strike(CODE, 2)
    lines = [key.wait for before, key in pairwise(keys) if before.text.startswith("\n")]
    usual = median(key.wait for key in keys)
    assert median(lines) > 3 * usual and max(key.wait for key in keys) < MOST_PAUSE + 10 * MEAN
    assert 0.0 < sum(key.wait > 4 * usual for key in keys) / len(keys) < 0.15


PLACE = TypingPlace("p/a.py", "python", "x = 1\n    ab = cd\n    e\ny = 2\n", 10, 23)


def test_a_place() -> None:
    assert PLACE.typed == "ab = cd\n    e" and PLACE.after(13) == PLACE.text
    assert PLACE.after(2) == "x = 1\n    ab\ny = 2\n" and PLACE.uri == "file:///typed/p/a.py"
    assert position(PLACE, 0) == {"line": 1, "character": 4} and position(PLACE, 12) == {"line": 2, "character": 4}
    item = {"insertText": "    ab = cd", "range": {"start": {"line": 1, "character": 0}}}
    assert shown_text(item, position(PLACE, 2)) == " = cd"
    assert [first_line(text) for text in ("a\nb", "\n  a\nb", "a", "")] == ["a", "\n  a", "a", ""]


def test_places_are_code_in_the_middle_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespec.corpus.held_out.held_out_files", list)
    body = "def area{}(width):\n    # twice\n    half = width * width\n    result = half + half\n    return result\n\n"
    files = [Document(f"p{n}", "a.py", "python", "".join(body.format(f"{n}_{i}") for i in range(20))) for n in range(9)]
    write_documents(tmp_path / "held_out.jsonl.gz", [*files, Document("short", "b.py", "python", "x = 1\n")])
    places, _ = find_typing_places(tmp_path / "held_out.jsonl.gz", None, 4)
    assert len({place.name for place in places}) == 4
    for place in places:
        assert place.typed.count("\n") == LINES - 1 and place.typed.startswith("half") and "#" not in place.typed
        assert len(place.text) * 0.4 < place.begin < place.end < len(place.text)
    assert [len(group) for group in in_turn(places[:3], 2)] == [2]


def test_the_last_lines_of_prompts(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a\\nb = 1\\nc = 2\\nd =", "suffix": "\\ne"}\n{"prompt": "too short"}\n')
    (place,), _ = find_typing_places(None, file, 5)
    assert place.typed == "b = 1\nc = 2\nd =" and place.after(0) == "a\n\ne" and place.text.endswith("d =\ne")
    file.write_text('{"prompt": "too short"}\n')
    with pytest.raises(ConfigError, match="no place to type in"):
        find_typing_places(None, file, 5)


@given(st.text("ab"), st.text("ab"))
def test_what_two_texts_begin_with(one: str, other: str) -> None:
    length = common(one, other)
    assert one[:length] == other[:length] and (one + "\0")[length] != (other + "\1")[length]


def stream(at: int, text: str, received: float = 0.0, tokens: int = 4, done: float | None = None) -> Stream:
    return Stream(received, PLACE.text[: PLACE.begin + at], 0, text, tokens, done=done, ended=done)


def asked(at: int, text: str | None, cause: str = "key", changed: float = 0.0, took: float = 0.1) -> Question:
    answered = None if text is None else changed + took
    return Question(at, cause, changed, changed + 0.05, answered, text or "")


@pytest.mark.parametrize(
    ("writing", "shown", "useful"),
    [
        (stream(1, "b = xx"), [asked(1, "b = xx")], 4 * 4 / 6),  # right up to the x
        (stream(1, "b = xx"), [asked(1, "b ")], 4 * 2 / 6),  # and only a part of it was shown
        (stream(1, "b = xx"), [asked(1, None)], 0.0),
        (stream(1, "no"), [asked(1, "no")], 0.0),
        (stream(1, "b = cd"), [asked(1, ""), asked(3, "= cd", changed=1.0)], 4.0),  # shown later, typed along
        (stream(1, "b = cd", received=9.0), [asked(1, "b = cd")], 0.0),  # that was another's
        (Stream(0.0, "x = 1\n    zz", 0, "ab", 2), [asked(0, "ab")], 0.0),  # behind what was never typed
    ],
)
def test_useful_tokens(writing: Stream, shown: list[Question], useful: float) -> None:
    assert useful_tokens(writing, shown, PLACE) == pytest.approx(useful)


def test_rows() -> None:
    questions = [asked(1, "b = xx"), asked(2, None, changed=1.0), asked(3, "= cd", changed=2.0, took=0.06)]
    questions.append(asked(3, "= cd\n    e", "more", 2.0, 0.3))
    streams = [stream(1, "b = xx", 0.06, done=0.09), stream(2, "", 1.052), stream(3, "= cd", 1.9, done=2.2)]
    typed = Typed(4.0, 12, 0, {0: 0.2, 1: 1.0, 2: 1.0}, questions, streams, 10, {"cutByTheClock": 1})
    rows = record(typed, PLACE)["questions"]
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


def test_verdicts_can_fail() -> None:
    leg = {"work": "asked", "there_ms": 1.0, "pause_ms": 900.0}
    fine = [session(cell, row(1, length, back_ms=1.0, **leg)) for cell, length in (("off", 2), ("on", 4))]
    poor = [
        session(cell, row(1, 2, back_ms=3.0, **leg), row(2, 0), row(3, 0), unhurried={"2": 5}) for cell in ("off", "on")
    ]
    facts, settings = {"machine": {"cores": 2, "processor": "", "load": [0.0, 0.0]}}, {"dtype": "float32", "pace": 1.0}
    for sessions, word in ((fine, "holds"), (poor, "FAILS")):
        section = {"facts": facts, "configuration": settings, "note": "", "summary": summarize(sessions)}
        for shape, claim in (("own", "an unhurried engine"), ("qwen2.5-0.5b", "1.3 times the characters")):
            found = {"sections": {shape: section}}
            verdicts = [line for line in report(found) if line.startswith(("holds: ", "FAILS: "))]
            assert [line[:5] for line in verdicts] == [word] * 2 and any(claim in line for line in verdicts)
            assert len(charts(found)) == 2
