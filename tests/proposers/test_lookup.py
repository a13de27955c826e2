"""Lookup, property by property: the match that counts, the draft, and its end."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from codespec.api.types import CompletionRequest, Snippet
from codespec.proposers.base import NOTHING
from codespec.proposers.lookup import MAX_MATCH, RECENT, SuffixProposer, end_after_spaces, longest_match
from codespec.sequence import Cap, Draft, Sequence
from codespec.text.filters import StopFinder

FEW = st.text(alphabet="ab \n", max_size=60).map(str.encode)


def sequence_of(context: str, generated: str = "", held: str = "", **request: object) -> Sequence:
    """Return a sequence after `context` and some generated text."""
    asked = CompletionRequest(prefix=context + held, **request)
    sequence = Sequence(asked, 0, [1], context.encode(), held.encode(), True, frozenset(), StopFinder())
    sequence.generated += generated.encode()
    return sequence


def draft(proposer: SuffixProposer, sequence: Sequence, tokens: int = 8, confidence: float = 0.0) -> Draft:
    return proposer.propose([sequence], [Cap(tokens, confidence)])[0]


def slow_longest(text: bytes, own: bytes, end: int) -> int:
    """Try every length, the longest first."""
    lengths = range(min(MAX_MATCH, len(own)), 0, -1)
    return next((size for size in lengths if own[len(own) - size :] in text[:end]), 0)


@given(FEW, FEW, st.integers(0, 60))
def test_the_longest_match_is_the_longest(text: bytes, own: bytes, end: int) -> None:
    length, place = longest_match(text, own, end)
    assert length == slow_longest(text, own, end)
    if length:
        assert text[place : place + length] == own[len(own) - length :]
        assert place + length <= end
        assert text.rfind(own[len(own) - length :], 0, end) == place, "the last occurrence: the nearest"


@given(FEW, FEW, st.integers(0, 60), st.integers(0, 60))
def test_a_match_that_is_not_longer_is_none(text: bytes, own: bytes, end: int, beyond: int) -> None:
    whole = longest_match(text, own, end)
    assert longest_match(text, own, end, beyond) == (whole if whole[0] > beyond else (0, 0))


class Counted(bytes):
    """Bytes that count their searches."""

    scans = 0

    def rfind(self, *place: Any) -> int:
        """Search as bytes do."""
        self.scans += 1
        return super().rfind(*place)


def test_a_text_in_which_nothing_matches_is_scanned_once() -> None:
    """Many texts search many others at each token; bisecting all of them took a tenth of a step."""
    proposer = SuffixProposer()
    recent = [Counted(bytes([number]) * 200) for number in range(97, 97 + RECENT)]
    proposer._recent.extend(("", text) for text in recent)
    assert draft(proposer, sequence_of("0123456789")) is NOTHING
    assert [text.scans for text in recent] == [1] * RECENT


@given(FEW, FEW)
def test_a_draft_is_what_followed(context: bytes, suffix: bytes) -> None:
    sequence = sequence_of(context.decode(), suffix=suffix.decode())
    found = draft(SuffixProposer(min_match=2), sequence)
    own = slow_longest(context, context, len(context) - 1)
    other = slow_longest(suffix, context, len(suffix) - 1)
    assert bool(found.text) == (max(own, other) >= 2)
    if found.text:
        tail = context[len(context) - max(own, other) :]
        assert tail + found.text in ((context + found.text)[:-1] if own >= other else suffix), "it may copy itself"


@given(st.sampled_from([b"a + b, ", b"x", b"    pass\n    ", b"[0, 1], [2, 3], "]), st.integers(1, 24))
def test_what_goes_round_is_drafted_round_and_round(period: bytes, tokens: int) -> None:
    """The nearest match of a repeating text ends one period back; the draft may still have any length."""
    again = period * (40 // len(period) + 1)
    found = draft(SuffixProposer(), sequence_of(again.decode()), tokens)
    assert (again + found.text) == (again * 40)[: len(again + found.text)]
    assert len(found.text) >= 3 * tokens


def test_short_matches_are_chance() -> None:
    sequence = sequence_of("abcdefg 1\nabcdefg")
    assert draft(SuffixProposer(min_match=8), sequence).text == b""
    assert draft(SuffixProposer(min_match=7), sequence).text.startswith(b" 1\n")


def test_a_match_at_a_sources_end_does_not_hide_another() -> None:
    """Nothing follows it, so a shorter match with a continuation counts."""
    text = "value = first(1)\nvalue = "
    sequence = sequence_of("print()\nvalue = ", snippets=(Snippet("b.py", text),))
    assert draft(SuffixProposer(), sequence).text.startswith(b"first(1)")


def test_the_longer_match_wins() -> None:
    near, far = "  total += item.price\n", "for item in cart:\n  total += item.weight\n"
    sequence = sequence_of(f"{near}pass\nfor item in cart:\n  total += item.", suffix=far)
    assert draft(SuffixProposer(), sequence).text.startswith(b"weight")


@given(st.lists(st.sampled_from(["def f():", "\n", "    ", "\t", "x", " "]), max_size=30), st.integers(1, 40))
def test_an_indent_is_not_cut(pieces: list[str], size: int) -> None:
    text = "".join(pieces).encode()
    kept = end_after_spaces(text, size)
    assert text.startswith(kept) and len(kept) >= min(size, len(text))
    if len(kept) < len(text):
        assert not (kept[-1:] in (b" ", b"\t", b"\n") and text[len(kept) : len(kept) + 1] in (b" ", b"\t"))
    assert not kept[size:].strip(), "longer than asked only by spaces"


def test_held_bytes_stand_before_the_draft() -> None:
    context = "return value\nif x:\n    "
    sequence = sequence_of(context, held="return")
    found = draft(SuffixProposer(min_match=6), sequence)
    assert found.text.startswith(b"return value")
    sequence.generated += b"re"
    assert draft(SuffixProposer(min_match=6), sequence).text.startswith(b"turn value")


def test_confidence_grows_with_the_match() -> None:
    long = sequence_of("the same line of code again\nthe same line of code")
    short = sequence_of("of code again\nxxx of code")
    proposer = SuffixProposer(min_match=6)
    strong, weak = draft(proposer, long), draft(proposer, short)
    assert strong.confidences[0] > weak.confidences[0] > 0
    limit = (strong.confidences[0] + weak.confidences[0]) / 2
    assert draft(proposer, long, confidence=limit).text == strong.text
    assert draft(proposer, short, confidence=limit).text == b""


def test_the_cap_bounds_the_draft() -> None:
    sequence = sequence_of("abcdefghij" + "0123456789" * 20 + "\nabcdefghij")
    sizes = [len(draft(SuffixProposer(), sequence, tokens=tokens).text) for tokens in (1, 2, 4, 8)]
    assert sizes == sorted(set(sizes)) and sizes[-1] <= 40


def test_only_the_last_completions_are_remembered() -> None:
    proposer = SuffixProposer()
    for number in range(40):
        proposer.release(sequence_of("", generated=f"unique_name_{number:03d} = {number}\n"), "stop")
    assert draft(proposer, sequence_of("unique_name_039")).text.startswith(b" = 39")
    assert not draft(proposer, sequence_of("unique_name_001")).text.startswith(b" = 1\n")
