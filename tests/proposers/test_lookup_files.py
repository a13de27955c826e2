"""Lookups in files sent by clients: the longest match, its last position, the owner of the files, and the bound."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from codespec.contract.types import CompletionRequest, Owner
from codespec.proposers.chain import ChainProposer
from codespec.proposers.suffix import MAX_MATCH, KeptFiles, SuffixProposer, longest_match
from codespec.sequence import Cap, Sequence
from codespec.text.filters import StopFinder

HERE, THERE = Owner("user 1", "a.py"), Owner("user 1", "b.py")
few = st.binary(max_size=80).map(lambda data: bytes(byte % 2 + 97 for byte in data))


def naive(data: bytes, tip: bytes) -> tuple[int, int]:
    for length in range(min(MAX_MATCH, len(tip)), 0, -1):
        place = data[:-1].rfind(tip[-length:])
        if place >= 0:
            return length, place
    return 0, 0


@given(few, few)
@settings(deadline=None)
def test_finds_the_longest_match_and_its_last_place(data: bytes, tip: bytes) -> None:
    assert longest_match(data, tip, len(data) - 1) == naive(data, tip)


def test_a_short_match_in_a_file_is_ignored() -> None:
    proposer = SuffixProposer()
    proposer.look_up_in(HERE, [b"f(alpha) = compute\n"])
    found = [proposer.propose([sequence(prefix)], [Cap(8)])[0].text for prefix in ("x (alpha)", "x f(alpha)")]
    assert found == [b"", b" = compute\n"]


def test_the_bound_holds() -> None:
    kept = KeptFiles(most=100)
    kept.keep(HERE, [b"x" * 60])
    kept.keep(THERE, [b"y" * 60])
    assert kept.of(HERE) == () and kept.of(THERE) == (b"y" * 60,)
    kept.keep(THERE, [b"z" * 101])
    assert kept.of(THERE) == ()


def test_a_file_is_kept_once() -> None:
    kept, other = KeptFiles(most=100), Owner("user 2", "a.py")
    kept.keep(HERE, [b"x" * 60, b"y" * 10])
    kept.keep(THERE, [b"y" * 10, b"x" * 60])
    assert all(a is b for a, b in zip(kept.of(HERE), kept.of(THERE)[::-1], strict=True)) and kept.of(HERE)
    kept.keep(other, [b"x" * 20])
    assert kept.of(other)[0] == b"x" * 20
    kept.keep(HERE, [])
    assert kept.of(HERE) == () and len(kept.of(THERE)) == 2


def sequence(prefix: str, owner: Owner = HERE) -> Sequence:
    request = CompletionRequest(prefix=prefix, document=owner.document, scope=owner.scope)
    return Sequence(
        request=request, choice=0, prompt_ids=[1], context=prefix.encode(), held=b"", continues=True,
        eos_ids=frozenset(), stops=StopFinder(),
    )  # fmt: skip


def test_drafts_copy_from_the_owners_files_only() -> None:
    proposer = ChainProposer([SuffixProposer()])
    proposer.look_up_in(HERE, [b"first_value = compute(alpha)\n", b"the_second_value = compute(beta)\n"])
    prefix = "my_second_value = compute("
    strangers = [Owner("user 2", "a.py"), Owner("user 1", "c.py"), Owner("", "")]
    drafts = proposer.propose([sequence(prefix), *(sequence(prefix, each) for each in strangers)], [Cap(8)] * 4)
    assert [draft.text for draft in drafts] == [b"beta)\n", b"", b"", b""]
    proposer.look_up_in(HERE, [])
    assert not proposer.propose([sequence(prefix)], [Cap(8)])[0].text


def test_a_longer_match_at_hand_goes_first() -> None:
    proposer = SuffixProposer()
    proposer.look_up_in(HERE, [b"x = compute(file)\n"])
    prefix = "my_value = compute(prompt)\nmy_value = compute("
    assert proposer.propose([sequence(prefix)], [Cap(8)])[0].text.startswith(b"prompt)")
