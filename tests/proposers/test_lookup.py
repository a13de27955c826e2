"""Lookup, property by property: the match that counts, the draft, its end, and the order of proposers."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import replace
from typing import Any

from codespec_lab.bench.policy.recording import cut_lookup
from hypothesis import given, settings
from hypothesis import strategies as st

from codespec.api.types import CompletionRequest, Snippet
from codespec.engine.round import first_drafts
from codespec.proposers.base import NOTHING
from codespec.proposers.lookup import MAX_MATCH, RECENT, SuffixProposer, end_after_spaces, longest_match
from codespec.sequence import Candidates, Cap, Draft, Sequence
from codespec.speculation.policy import WARM_UP, Ds4Table, FixedLength
from codespec.text.filters import StopFinder
from tests.pairs import Scripted

FEW = st.text(alphabet="ab \n", max_size=60).map(str.encode)


def sequence_of(context: str, generated: str = "", held: str = "", **request: object) -> Sequence:
    """Return a sequence after `context` and some generated text."""
    asked = CompletionRequest(prefix=context + held, **request)
    sequence = Sequence(asked, 0, [1], context.encode(), held.encode(), True, frozenset(), StopFinder())
    sequence.generated += generated.encode()
    return sequence


def draft(proposer: SuffixProposer, sequence: Sequence, tokens: int = 8, confidence: float = 0.0) -> Draft:
    return proposer.propose([sequence], [Cap(tokens, confidence)])[0]


def propose(sequence: Sequence, tokens: int = 8, confidence: float = 0.0) -> Draft:
    return draft(SuffixProposer(), sequence, tokens, confidence)


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
    found = propose(sequence_of(again.decode()), tokens)
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
    assert propose(sequence).text.startswith(b"first(1)")


def test_the_longer_match_wins() -> None:
    near, far = "  total += item.price\n", "for item in cart:\n  total += item.weight\n"
    sequence = sequence_of(f"{near}pass\nfor item in cart:\n  total += item.", suffix=far)
    assert propose(sequence).text.startswith(b"weight")


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
    sizes = [len(propose(sequence, tokens=tokens).text) for tokens in (1, 2, 4, 8)]
    assert sizes == sorted(set(sizes)) and sizes[-1] <= 40


def test_only_the_last_completions_are_remembered() -> None:
    proposer = SuffixProposer()
    for number in range(40):
        proposer.release(sequence_of("", generated=f"unique_name_{number:03d} = {number}\n"), "stop")
    assert draft(proposer, sequence_of("unique_name_039")).text.startswith(b" = 39")
    assert not draft(proposer, sequence_of("unique_name_001")).text.startswith(b" = 1\n")


def test_guesses_what_followed_last_time() -> None:
    prefix = "value = compute(alpha)\nother = 1\nvalue = compute("
    assert propose(sequence_of(prefix)).text.startswith(b"alpha)\nother = 1\n")
    assert propose(sequence_of("value = comp", "ute(x)\nvalue = comp")).text.startswith(b"ute(x)")


def test_looks_right_of_the_cursor_and_into_snippets() -> None:
    assert propose(sequence_of("result.append(", suffix="\nresult.append(item)\n")).text.startswith(b"item)")
    snippet = Snippet("b.py", "result.append(thing)")
    assert propose(sequence_of("result.append(", snippets=(snippet,))).text == b"thing)"


def test_looks_into_what_the_target_does_not_read() -> None:
    cut = sequence_of("tail.append(", generated="first.")
    cut.request = replace(cut.request, prefix="first.insert(0, item)\n" * 3 + "tail.append(")
    assert propose(cut).text.startswith(b"insert(0, item)")
    cut.request = replace(cut.request, prefix="first.insert(0, item)\nanother end(")
    assert propose(cut) is NOTHING, "a prompt that was made elsewhere: the text is no beginning of it"


def test_remembers_recent_completions() -> None:
    proposer = SuffixProposer()
    proposer.release(sequence_of("connection.", "execute(statement)\n"), "stop")
    found = draft(proposer, sequence_of("my connection."))
    assert found.text.startswith(b"execute(statement)")


def test_says_nothing_without_a_match_of_three_bytes_or_when_unsure() -> None:
    assert propose(sequence_of("abcdefg hijklmn")) is NOTHING
    assert propose(sequence_of("as or, as")) is NOTHING and propose(sequence_of("ask or, ask")).text.startswith(
        b" or, ask or"
    )
    assert propose(sequence_of("12345678 x 12345678"), confidence=0.9) is NOTHING


def test_who_weighs_no_chances_takes_no_short_match() -> None:
    short, long = sequence_of("1234567 x 1234567"), sequence_of("12345678 x 12345678")
    short.ids = long.ids = [1] * WARM_UP
    for policy in (FixedLength(5), Ds4Table(5)):
        drafts = first_drafts([SuffixProposer()], [short, long], policy.plan([short, long]).caps)
        assert not drafts[0].text and drafts[1].text.startswith(b" x 1")


@given(st.text("ab \n", min_size=8, max_size=80), st.integers(1, 16), st.integers(1, 16))
@settings(deadline=None)
def test_a_draft_under_a_smaller_cap_is_the_longer_one_cut(prefix: str, tokens: int, more: int) -> None:
    """Replays record only the longest draft."""
    made, cap = sequence_of(prefix), Cap(tokens)
    longer = propose(made, min(16, tokens + more))
    shorter = SuffixProposer().propose([made], [cap])[0]
    assert (cut_lookup(longer, made, cap) if longer.text else NOTHING).text == shorter.text


def test_policies() -> None:
    sequences = [sequence_of("a"), sequence_of("b")]
    assert [(cap.tokens, cap.of("draft_model").min_confidence) for cap in FixedLength(5).plan(sequences).caps] == [
        (5, 0.0)
    ] * 2
    candidates = [Candidates((1, 2), "suffix")]
    assert FixedLength(1).plan(sequences).trim(candidates) == candidates


class Only(Scripted):
    """Drafts for sequences whose text contains a word; records its calls."""

    def __init__(self, name: str, word: str) -> None:
        super().__init__()
        self.name = name
        self.word = word.encode()
        self.asked: list[list[Sequence]] = []

    def propose(self, sequences: Several[Sequence], caps: Several[Cap]) -> list[Draft]:
        self.asked.append(list(sequences))
        return super().propose(sequences, caps)

    def draft(self, sequence: Sequence, cap: Cap) -> Draft:
        return Draft(b"x" * cap.tokens, self.name) if self.word in sequence.context else Draft()


def test_the_first_draft_counts() -> None:
    first, second = Only("first", "a"), Only("second", "b")
    both, later, none, idle = (sequence_of(text) for text in ("a b", "b", "c", "a b"))
    drafts = first_drafts([first, second], [both, later, none, idle], [Cap(1), Cap(2), Cap(3), Cap(0)])
    assert [draft.source for draft in drafts] == ["first", "second", "", ""]
    assert [len(draft.text) for draft in drafts] == [1, 2, 0, 0], "each with its own cap"
    assert first.asked == [[both, later, none]] and second.asked == [[later, none]]


def test_later_proposers_are_not_asked_in_vain() -> None:
    first, second = Only("first", "a"), Only("second", "b")
    first_drafts([first, second], [sequence_of("a"), sequence_of("a")], [Cap(1), Cap(1)])
    first_drafts([first, second], [sequence_of("b")], [Cap(0)])
    assert second.asked == []
