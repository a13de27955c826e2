"""Display of the source of each text piece, with and without colours."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.api.types import Completion, Counts, RoundEvent, Stats
from codespec.cli.complete import ACCEPTED, FAINT, REJECTED, RESET, Painter

WORDS = st.text(st.sampled_from("abc \r\n"), max_size=8)


def one_round(accepted: str, rejected: str, target: str) -> RoundEvent:
    drafted = bool(accepted) + bool(rejected)
    return RoundEvent(0, "draft_model", drafted, int(bool(accepted)), accepted + rejected, accepted, target, "")


def paint(*rounds: RoundEvent, colour: bool) -> str:
    out = io.StringIO()
    painter = Painter(out, colour=colour)
    for event in rounds:
        painter.round(event)
    return out.getvalue()


def test_every_round_can_say_why() -> None:
    out = io.StringIO()
    painter = Painter(out, colour=False)
    for event in (one_round("ab", "cd", "t"), replace(one_round("", "", "t"), reason="it does not pay")):
        painter.round(event)
    painter.why()
    first, *lines = out.getvalue().splitlines()
    assert first == "[ab]-cd-ttstep  accepted/drafted tokens, and the reason for the draft's length"
    assert lines == ["  1  1/2  no draft", "  2  0/0  it does not pay"]


@pytest.mark.parametrize(
    ("accepted", "rejected", "plain", "coloured"),
    [
        ("", "", "t", "t"),
        ("ab", "", "[ab]t", f"{ACCEPTED}ab{RESET}t"),
        ("", "cd", "-cd-t", f"{REJECTED}cd{RESET}t"),
        ("ab", "c\r\nd", "[ab]-c\\r\\nd-t", f"{ACCEPTED}ab{RESET}{REJECTED}c\\r\\nd{RESET}t"),
        ("a\nb", "", "[a\nb]t", f"{ACCEPTED}a\nb{RESET}t"),
    ],
)
def test_a_round(accepted: str, rejected: str, plain: str, coloured: str) -> None:
    event = one_round(accepted, rejected, "t")
    assert paint(event, colour=False) == plain
    assert paint(event, colour=True) == coloured


@given(st.lists(st.tuples(WORDS, WORDS, WORDS), max_size=5))
def test_without_the_marks_the_text_is_left(rounds: list[tuple[str, str, str]]) -> None:
    events = [one_round(*parts) for parts in rounds]
    text = "".join(accepted + target for accepted, _, target in rounds)
    coloured = re.sub(f"{re.escape(REJECTED)}.*?{re.escape(RESET)}", "", paint(*events, colour=True))
    assert coloured.replace(ACCEPTED, "").replace(RESET, "") == text
    assert re.sub(r"-[^-]*-|[\[\]]", "", paint(*events, colour=False)) == text


def test_each_piece_is_written_at_once() -> None:
    class Out(io.StringIO):
        flushed = 0

        def flush(self) -> None:
            self.flushed += 1

    out = Out()
    for count, piece in enumerate(("a", "", "\n"), start=1):
        Painter(out, colour=False).plain(piece)
        assert out.flushed == count


@pytest.mark.parametrize(("colour", "start", "end"), [(False, "", "\n"), (True, FAINT, f"{RESET}\n")])
def test_summary(colour: bool, start: str, end: str) -> None:
    counts = {"suffix": Counts(3, 1), "draft_model": Counts(4, 2)}
    stats = Stats(rounds=5, drafted=7, accepted=3, committed=8, by_source=counts, total_ms=12.4)
    out = io.StringIO()
    Painter(out, colour).summary(Completion("text", (), "stop", stats))
    line = "8 tokens in 5 rounds, 3 of 7 drafted accepted, 12 ms (draft_model 2/4, suffix 1/3)"
    assert out.getvalue() == start + line + end
