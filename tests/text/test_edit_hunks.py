"""Hunks of an answer that rewrites a window: any split into pieces gives the same ones, and applied they give it."""

from __future__ import annotations

import itertools
import random

import pytest

from codespec.text.edit_formats import AnswerReader, LineHunk, Window

OLD = ["def f(a):", "    x = a", "    y = x", "    return y", "", "", "def g(b):", "    return f(b)"]


def hunks(answer: str, old: list[str] | None = None, size: int = 1 << 20, mark: str = "") -> list[LineHunk]:
    reader = AnswerReader(Window(tuple(OLD if old is None else old), marks=(mark,) if mark else ()))
    pieces = (answer[start : start + size] for start in range(0, len(answer), size))
    return [hunk for piece in pieces for hunk in reader.feed(piece)] + reader.finish()


def applied(old: list[str], found: list[LineHunk]) -> list[str]:
    lines = list(old)
    for hunk in sorted(found, key=lambda hunk: -hunk.start):
        lines[hunk.start : hunk.end] = hunk.lines
    return lines


def text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("new", "found"),
    [
        (OLD, []),
        ([*OLD[:1], "    x = a + 1", *OLD[2:]], [LineHunk(1, 2, ("    x = a + 1",))]),
        ([*OLD[:2], *OLD[3:]], [LineHunk(2, 3, ())]),
        ([*OLD[:2], "    z = 1", "    z += 1", *OLD[2:]], [LineHunk(2, 2, ("    z = 1", "    z += 1"))]),
        (
            ["def h(a):", *OLD[1:7], "    return h(b)"],
            [LineHunk(0, 1, ("def h(a):",)), LineHunk(7, 8, ("    return h(b)",))],
        ),
        ([*OLD, "    # end"], [LineHunk(8, 8, ("    # end",))]),
        (OLD[:4], [LineHunk(4, 8, ())]),
    ],
)
def test_hunks_are_whole_lines_that_differ(new: list[str], found: list[LineHunk]) -> None:
    for size in (1, 3, 1 << 20):
        assert hunks(text(new), size=size) == found
    assert hunks(text(new).removesuffix("\n")) == found


def test_a_hunk_comes_once_two_lines_with_letters_agree_again() -> None:
    reader = AnswerReader(Window(tuple(OLD)))
    assert reader.feed("def f(a):\n    x = 1\n    y = x\n    return") == []
    assert reader.feed(" y\n") == [LineHunk(1, 2, ("    x = 1",))]
    assert reader.feed("\n\ndef g(b):\n    return f(b)\n") == [] == reader.finish()


def test_blank_lines_and_brackets_do_not_end_a_hunk_before_three_agree() -> None:
    old = ["a", "}", "", "b", "}", "", "c", "d"]
    reader = AnswerReader(Window(tuple(old)))
    assert reader.feed("x\n}\n\n") == []
    assert reader.feed("b\n") == [LineHunk(0, 1, ("x",))]


@pytest.mark.parametrize("tail", ["", "\n", "\n\n\n"])
def test_blank_lines_at_the_end_change_nothing(tail: str) -> None:
    old = [*OLD, "", ""]
    assert hunks("\n".join(OLD) + tail, old) == []
    changed = [*OLD[:7], "    return 1"]
    assert hunks("\n".join(changed) + tail, old) == [LineHunk(7, 8, ("    return 1",))]


def test_an_answer_without_text_changes_nothing() -> None:
    assert hunks("") == hunks("\n \n\n") == []


def test_lines_after_the_window_are_no_part_of_the_answer() -> None:
    after = ("}", "", "def h(c):", "    return c")

    def read(lines: list[str]) -> list[LineHunk]:
        reader = AnswerReader(Window(tuple(OLD), after=after))
        return [*reader.feed(text(lines)), *reader.finish()]

    assert read([*OLD, "}"]) == read([*OLD, "}", "", "def h(c):"]) == []
    assert read([*OLD, "    # end", *after[:3]]) == [LineHunk(8, 8, ("    # end",))]
    block = ("    if b {", "        g(b)", "}")
    assert read([*OLD, *block]) == [LineHunk(8, 8, block)], "a new block needs its bracket"
    assert read([*OLD[:7], "    return 1", *after[:3]]) == [LineHunk(7, 8, ("    return 1",))]


def test_lines_that_an_answer_does_not_reach_stay_for_a_model_that_ends_too_early() -> None:
    old = ["a = {", "    1: x,", "}", "b = 2", "c = 3"]

    def read(lines: list[str], after: tuple[str, ...] = ("d = 4",)) -> list[LineHunk]:
        reader = AnswerReader(Window(tuple(old), after=after, keeps_end=True))
        return [*reader.feed(text(lines)), *reader.finish()]

    assert read(old[:1]) == read(old[:4]) == read([]) == []
    assert read([*old[:2], "    2: y,"]) == [LineHunk(2, 2, ("    2: y,",))], "the bracket stays"
    assert read([*old[:3], "b = 4"]) == [LineHunk(3, 4, ("b = 4",))]
    assert read([*old[:3], "c = 3"]) == [LineHunk(3, 4, ())], "the end is reached"
    old = ["a = [", "    {", "        1: x,", "    }", "]"]
    more = "        2: y,"
    assert read([*old[:3], more, "]"]) == read([*old[:3], more]) == [LineHunk(3, 3, (more,))], (
        "code replaces no bracket"
    )
    assert read([*old[:3], "    }, {", more]) == [LineHunk(3, 4, ("    }, {", more))], "but goes on after it"
    assert read([*old[:3], "]"]) == [], "nor does nothing"
    assert read([*old, "e = 5"]) == [] and read([*old, "e = 5"], ()) == [LineHunk(5, 5, ("e = 5",))]
    assert hunks(text(old[:4]), old) == [LineHunk(4, 5, ())], "a trained model deletes lines in this way"


def test_the_cursor_s_mark_is_no_text() -> None:
    assert hunks(text(OLD).replace("y = x", "y =<|cursor|> x"), mark="<|cursor|>") == []


def test_any_answer_is_what_its_hunks_make_of_the_window() -> None:
    rng = random.Random(5)
    words = ["a", "b", "c", "}", "", "return x", "x = 1"]
    for _ in range(2000):
        old = [*rng.choices(words, k=rng.randrange(1, 12)), "end"]
        new = [line for line in old if rng.random() > 0.2]
        for _ in range(rng.randrange(4)):
            new.insert(rng.randrange(len(new) + 1), rng.choice(words))
        if new and new[-1]:
            found = hunks(text(new), old, size=rng.randrange(1, 9))
            assert applied(old, found) == new
            assert all(hunk.lines != tuple(old[hunk.start : hunk.end]) for hunk in found)
            assert all(one.end <= two.start for one, two in itertools.pairwise(found))


class Reader(AnswerReader):
    """A reader that reads every answer to its end."""

    @property
    def is_over(self) -> bool:
        return False


def read_whole(window: Window, answer: str) -> list[LineHunk]:
    reader = Reader(window)
    return reader.feed(answer) + reader.finish()


def read_until_over(window: Window, answer: str) -> tuple[list[LineHunk], int]:
    """Return the hunks of an answer that is cut once its reader is over, and the characters read until then."""
    reader, found, read = AnswerReader(window), list[LineHunk](), 0
    while read < len(answer) and not reader.is_over:
        found += reader.feed(answer[read])
        read += 1
    return found + reader.finish(), read


AFTER = ("", "", "def h(c):", "    return c")


@pytest.mark.parametrize("last", ["def h(c):", "    return c", "x"])
def test_an_answer_is_over_at_the_window_s_end_if_nothing_can_be_added_there(last: str) -> None:
    changed = [OLD[0], "    x = 1", *OLD[2:]]
    early = Window(tuple(OLD), after=AFTER, keeps_end=True)
    assert read_until_over(early, text([*changed, last])) == ([LineHunk(1, 2, ("    x = 1",))], len(text(changed)))
    trained = Window(tuple(OLD), after=AFTER)
    assert read_until_over(trained, text(changed))[0] == [LineHunk(1, 2, ("    x = 1",))]
    assert read_until_over(trained, text([*changed, last]))[1] == len(text([*changed, last])), "may be added"
    ends = Window(tuple(OLD), after=("", ""), keeps_end=True)
    assert read_until_over(ends, text([*OLD, last])) == ([LineHunk(8, 8, (last,))], len(text([*OLD, last])))


def test_an_answer_that_is_over_has_the_hunks_of_the_whole_one() -> None:
    rng, early = random.Random(7), 0
    words = ["a", "b", "c", "}", "", "return x", "x = 1"]
    for _ in range(4000):
        old = tuple(rng.choices(words, k=rng.randrange(1, 10)))
        after = tuple(rng.choices(words, k=rng.randrange(6)))
        new = [line for line in old if rng.random() > 0.1]
        for _ in range(rng.randrange(3)):
            new.insert(rng.randrange(len(new) + 1), rng.choice(words))
        window = Window(old, rng.randrange(len(old)), after=after, keeps_end=rng.random() < 0.8)
        answer = text([*new[window.given :], *rng.choices(words, k=rng.randrange(5))])
        found, read = read_until_over(window, answer)
        at_once = AnswerReader(window)
        assert found == at_once.feed(answer) + at_once.finish() == read_whole(window, answer), (window, answer)
        early += read < len(answer)
    assert early > 400
