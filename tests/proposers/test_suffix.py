"""Lookup by longest suffix, the chain, and the possible lengths of a draft."""

from __future__ import annotations

from dataclasses import replace

from codespec_lab.bench.policy.recording import cut_lookup
from hypothesis import given, settings
from hypothesis import strategies as st

from codespec.api.types import CompletionRequest, Snippet
from codespec.proposers.base import NOTHING, first_drafts
from codespec.proposers.lookup import SuffixProposer, end_after_spaces, longest_match
from codespec.sequence import Candidates, Cap, Draft, Sequence
from codespec.speculation.policy import WARM_UP, Ds4Table, FixedLength
from codespec.text.filters import StopFinder


def sequence(prefix: str, generated: str = "", *, suffix: str = "", snippet: str = "", held: str = "") -> Sequence:
    snippets = (Snippet("other.py", snippet),) if snippet else ()
    made = Sequence(
        request=CompletionRequest(prefix=prefix, suffix=suffix, snippets=snippets),
        choice=0,
        prompt_ids=[1, 2, 3],
        context=prefix.encode(),
        held=held.encode(),
        continues=True,
        eos_ids=frozenset(),
        stops=StopFinder(),
    )
    made.generated += generated.encode()
    return made


def propose(made: Sequence, tokens: int = 8, confidence: float = 0.0) -> Draft:
    return SuffixProposer().propose([made], [Cap(tokens, confidence)])[0]


def naive(text: bytes, own: bytes, end: int) -> int:
    """Return the length of the longest suffix of `own` inside text[:end], trying one length after another."""
    return max((n for n in range(min(96, len(own)) + 1) if own[len(own) - n :] in text[:end]), default=0)


@given(st.binary(max_size=60).map(lambda data: bytes(b % 3 + 97 for b in data)))
@settings(deadline=None)
def test_finds_the_longest_suffix_that_occurred_before(own: bytes) -> None:
    length, place = longest_match(own, own, len(own) - 1)
    assert length == naive(own, own, len(own) - 1)
    assert own[place : place + length] == own[len(own) - length :]


def test_guesses_what_followed_last_time() -> None:
    prefix = "value = compute(alpha)\nother = 1\nvalue = compute("
    assert propose(sequence(prefix)).text.startswith(b"alpha)\nother = 1\n")
    assert propose(sequence("value = comp", "ute(x)\nvalue = comp")).text.startswith(b"ute(x)")


def test_looks_right_of_the_cursor_and_into_snippets() -> None:
    assert propose(sequence("result.append(", suffix="\nresult.append(item)\n")).text.startswith(b"item)")
    assert propose(sequence("result.append(", snippet="result.append(thing)")).text == b"thing)"


def test_looks_into_what_the_target_does_not_read() -> None:
    cut = sequence("tail.append(", generated="first.")
    cut.request = replace(cut.request, prefix="first.insert(0, item)\n" * 3 + "tail.append(")
    assert propose(cut).text.startswith(b"insert(0, item)")
    cut.request = replace(cut.request, prefix="first.insert(0, item)\nanother end(")
    assert propose(cut) is NOTHING, "a prompt that was made elsewhere: the text is no beginning of it"


def test_remembers_recent_completions() -> None:
    proposer = SuffixProposer()
    proposer.release(sequence("connection.", "execute(statement)\n"), "stop")
    draft = proposer.propose([sequence("my connection.")], [Cap(8)])[0]
    assert draft.text.startswith(b"execute(statement)")


def test_says_nothing_without_a_match_of_three_bytes_or_when_unsure() -> None:
    assert propose(sequence("abcdefg hijklmn")) is NOTHING
    assert propose(sequence("as or, as")) is NOTHING and propose(sequence("ask or, ask")).text.startswith(
        b" or, ask or"
    )
    assert propose(sequence("12345678 x 12345678"), confidence=0.9) is NOTHING


def test_held_bytes_come_first() -> None:
    draft = propose(sequence("compute_all(alpha)\n", held="compute_al"))
    assert draft.text.startswith(b"compute_al" + b"l(alpha)")


def test_never_cuts_inside_an_indent() -> None:
    text = b"if x:\n        return y"
    assert [end_after_spaces(text, n) for n in (5, 6, 9, 14)] == [b"if x:", text[:14], text[:14], text[:14]]
    assert end_after_spaces(b"abc", 9) == b"abc"


def test_who_weighs_no_chances_takes_no_short_match() -> None:
    short, long = sequence("1234567 x 1234567"), sequence("12345678 x 12345678")
    short.ids = long.ids = [1] * WARM_UP
    for policy in (FixedLength(5), Ds4Table(5)):
        drafts = first_drafts([SuffixProposer()], [short, long], policy.plan([short, long]).caps)
        assert not drafts[0].text and drafts[1].text.startswith(b" x 1")


@given(st.text("ab \n", min_size=8, max_size=80), st.integers(1, 16), st.integers(1, 16))
@settings(deadline=None)
def test_a_draft_under_a_smaller_cap_is_the_longer_one_cut(prefix: str, tokens: int, more: int) -> None:
    """Replays record only the longest draft."""
    made, cap = sequence(prefix), Cap(tokens)
    longer = propose(made, min(16, tokens + more))
    shorter = SuffixProposer().propose([made], [cap])[0]
    assert (cut_lookup(longer, made, cap) if longer.text else NOTHING).text == shorter.text


def test_policies() -> None:
    sequences = [sequence("a"), sequence("b")]
    assert [(cap.tokens, cap.of("draft_model").min_confidence) for cap in FixedLength(5).plan(sequences).caps] == [
        (5, 0.0)
    ] * 2
    candidates = [Candidates((1, 2), "suffix")]
    assert FixedLength(1).plan(sequences).trim(candidates) == candidates
