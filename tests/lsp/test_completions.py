"""Suggestion tracking from edits alone: typing along, accepting parts, going back, and everything else."""

from __future__ import annotations

import pytest
from codespec_lsp.acceptance import Acceptance, Counters
from codespec_lsp.buffer import Edit
from codespec_lsp.completions import CachedCompletion, CompletionCache, Suggestion, TypedPrefix, is_accepted
from codespec_lsp.prompt import TextAround
from hypothesis import given
from hypothesis import strategies as st

TEXT = "append(item)\n    return self"


def suggested(number: int, text: str) -> Suggestion:
    return Suggestion(CachedCompletion(TextAround("u", "", ""), text, number=number), text, text)


edits = st.tuples(st.integers(0, 12), st.integers(0, 4), st.text(alphabet="ab(\n", max_size=4))


@given(before=st.text("ab", max_size=6), text=st.text("ab(\n", max_size=12), steps=st.lists(edits, max_size=8))
def test_followed_is_what_stands_there(before: str, text: str, steps: list[tuple[int, int, str]]) -> None:
    """After any edit, a suggestion that is not lost matches the document, and the cache returns exactly the rest.

    A lost one is found again only if its text is there again.
    """
    document, typed_prefix = before + "|", TypedPrefix(len(before))
    cache, known = CompletionCache(), CachedCompletion(TextAround("u", before, "|"), text, done=True)
    cache.add([known])
    for start, length, inserted in steps:
        start = min(start, len(document) - 1)
        end = min(start + length, len(document) - 1)
        edit = Edit(start, document[start:end], inserted)
        document = document[:start] + inserted + document[end:]
        piece = typed_prefix.follow(edit, text)
        assert text.find(piece) >= 0
        if not typed_prefix.lost:
            assert document[typed_prefix.start : typed_prefix.tip] == text[: typed_prefix.typed]
    prefix = document[:-1]
    found = cache.find(TextAround("u", prefix, "|"))
    typed = prefix[len(before) :]
    stands = prefix.startswith(before) and text.startswith(typed) and (len(typed) < len(text) or not text)
    assert found == ([known] if stands else [])
    assert not stands or known.prompt.rest(TextAround("u", prefix, "|"), text) == text[len(typed) :]


@given(cuts=st.lists(st.integers(1, 6), min_size=1, max_size=10))
def test_a_text_put_in_piece_by_piece_is_counted_once(cuts: list[int]) -> None:
    counters = Counters()
    acceptance = Acceptance(counters)
    acceptance.show("u", [suggested(1, TEXT)], 5)
    at, by_hand = 0, 0
    for size in cuts:
        piece = TEXT[at : at + size]
        if piece:
            acceptance.edited("u", Edit(5 + at, "", piece))
            by_hand += 0 if is_accepted(piece) else len(piece)
        at += len(piece)
    assert counters.accepted_characters == at - by_hand
    assert counters.accepted + counters.partly_accepted == (1 if counters.accepted_characters else 0)
    assert counters.shown == 1


@pytest.mark.parametrize(
    ("piece", "accepted"),
    [("a", False), ("ap", True), ("()", False), ("\n    ", False), ("\n  x", True), ("(i", True), ('""', False)],
)
def test_what_a_key_can_not_put_in_was_accepted(piece: str, accepted: bool) -> None:
    assert is_accepted(piece) is accepted


def counted(*steps: object) -> tuple[int, int, int]:
    """Return the counts of whole acceptances, partial ones, and characters."""
    counters = Counters()
    acceptance = Acceptance(counters)
    acceptance.show("u", [suggested(1, TEXT), suggested(2, "other")], 5)
    for step in steps:
        if isinstance(step, Edit):
            acceptance.edited("u", step)
        elif isinstance(step, tuple):
            acceptance.accept_part(*step)
        else:
            acceptance.accept(str(step))
    return counters.accepted, counters.partly_accepted, counters.accepted_characters


WHOLE = Edit(5, "", TEXT)
REPLACED = Edit(0, "xs = ", "xs = " + TEXT)  # Neovim's way: replace the line up to the cursor by itself and the text
WORD = Edit(5, "", "append")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([WHOLE], (1, 0, 28)),
        ([REPLACED], (1, 0, 28)),
        (["1"], (1, 0, 28)),
        ([WHOLE, "1"], (1, 0, 28)),
        (["1", WHOLE], (1, 0, 28)),
        ([WORD], (0, 1, 6)),
        ([WORD, ("1", 6)], (0, 1, 6)),
        ([("1", 6), WORD, Edit(11, "", "(item)")], (0, 1, 12)),
        ([WORD, Edit(11, "", TEXT[6:])], (1, 0, 28)),
        ([Edit(5, "", "a"), Edit(6, "", "p")], (0, 0, 0)),
        ([Edit(5, "", "a"), Edit(6, "", TEXT[1:])], (1, 0, 27)),
        ([Edit(5, "", "zz"), WHOLE], (0, 0, 0)),
        ([Edit(5, "", "other")], (1, 0, 5)),
        ([WORD, Edit(5, "append", ""), WORD], (0, 1, 6)),
        (["none", ("none", 3), ("1", 0)], (0, 0, 0)),
    ],
)
def test_however_it_is_told_it_counts_once(steps: list[object], expected: tuple[int, int, int]) -> None:
    assert counted(*steps) == expected


def test_a_text_that_grew_is_the_same_suggestion() -> None:
    counters = Counters()
    acceptance = Acceptance(counters)
    acceptance.show("u", [suggested(1, "append")], 5)
    acceptance.show("u", [suggested(1, TEXT)], 5)
    acceptance.edited("u", WHOLE)
    assert (counters.shown, counters.accepted, counters.acceptance) == (1, 1, 1.0)


@pytest.mark.parametrize(
    ("edit", "lost"),
    [
        (Edit(13, "nd", ""), False),
        (Edit(10, "app", ""), True),
        (Edit(8, "(xappen", ""), True),
        (Edit(14, "d", "x"), True),
        (Edit(2, "ab", ""), True),
    ],
    ids=["its end", "its middle", "more than was typed", "replaced", "elsewhere"],
)
def test_only_the_end_of_what_was_typed_can_be_taken_back(edit: Edit, lost: bool) -> None:
    typed_prefix = TypedPrefix(10)
    typed_prefix.follow(Edit(10, "", "appen"), TEXT)
    typed_prefix.follow(edit, TEXT)
    assert (typed_prefix.lost, typed_prefix.tip) == (lost, 15 if lost else 13)
