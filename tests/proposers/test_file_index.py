"""Lookups in files sent by clients: the longest match, its last position, the owner of the files, and the bound."""

from __future__ import annotations

import time
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from codespec.api.types import CompletionRequest, Owner
from codespec.proposers.lookup import GRAM, CachedFiles, FileIndex, SuffixProposer, longest_match
from codespec.sequence import Cap, Sequence
from codespec.text.filters import StopFinder

HERE, THERE = Owner("user 1", "a.py"), Owner("user 1", "b.py")
few = st.binary(max_size=80).map(lambda data: bytes(byte % 2 + 97 for byte in data))


def naive(data: bytes, tip: bytes) -> tuple[int, int]:
    for length in range(min(96, len(tip)), GRAM - 1, -1):
        place = data[:-1].rfind(tip[-length:])
        if place >= 0:
            return length, place + length
    return 0, 0


@given(few, few)
@settings(deadline=None)
def test_finds_the_longest_match_and_its_last_place(data: bytes, tip: bytes) -> None:
    assert FileIndex(data).find(tip) == naive(data, tip)


def test_a_hostile_file_takes_no_longer_than_a_scan() -> None:
    """Runs of one letter, in which a search by bytes compares every suffix at every place: 24 ms for this file."""
    data, tip = b"a" * (512 << 10), b"a" * 20 + b"b" + b"a" * 75
    index = FileIndex(data)
    assert (
        least(lambda: index.find(tip)) < least(lambda: sum(data)) < least(lambda: longest_match(data, tip, len(data)))
    )


def least(run: Callable[[], object]) -> float:
    """Return the least processor time of five runs."""
    seconds = []
    for _ in range(5):
        began = time.process_time()
        run()
        seconds.append(time.process_time() - began)
    return min(seconds)


def test_finds_only_what_is_longer() -> None:
    index = FileIndex(b"value = compute(alpha)\n")
    assert index.find(b"the value = compute(") == (16, 16) and index.find(b"the value = compute(", 15) == (16, 16)
    assert index.find(b"the value = compute(", 16) == (0, 0)
    assert index.find(b"alpha)\n") == (0, 0), "shorter than a run"
    assert index.find(b"compute(alpha)\n") == (0, 0), "nothing follows"
    assert FileIndex(b"").find(b"compute(alpha)") == (0, 0)


def test_the_bound_holds() -> None:
    kept = CachedFiles(most=100)
    kept.store(HERE, [b"x" * 60])
    kept.store(THERE, [b"y" * 60])
    assert kept.of(HERE) == [] and [index.data for index in kept.of(THERE)] == [b"y" * 60]
    kept.store(THERE, [b"z" * 101])
    assert kept.of(THERE) == []


def test_a_file_is_kept_once() -> None:
    kept, other = CachedFiles(most=100), Owner("user 2", "a.py")
    kept.store(HERE, [b"x" * 60, b"y" * 10])
    kept.store(THERE, [b"y" * 10, b"x" * 60])
    assert kept.of(HERE) == kept.of(THERE)[::-1] != []
    kept.store(other, [b"x" * 20])
    assert kept.of(other)[0].data == b"x" * 20
    kept.store(HERE, [])
    assert kept.of(HERE) == [] and len(kept.of(THERE)) == 2


def sequence(prefix: str, owner: Owner = HERE) -> Sequence:
    request = CompletionRequest(prefix=prefix, document=owner.document, scope=owner.scope)
    return Sequence(
        request=request, choice=0, prompt_ids=[1], context=prefix.encode(), held=b"", continues=True,
        eos_ids=frozenset(), stops=StopFinder(),
    )  # fmt: skip


def test_drafts_copy_from_the_owners_files_only() -> None:
    proposer = SuffixProposer()
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
