"""How much of a draft is accepted, and how rounds are counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from codespec.api.types import Counts, Stats
from codespec.sequence import Candidates
from codespec.verify.acceptance import match

IDS = st.lists(st.integers(0, 3), max_size=8)


@given(IDS, IDS, st.integers(0, 3))
def test_accepts_the_common_prefix(candidates: list[int], others: list[int], bonus: int) -> None:
    choices, asked = [*others, *[9] * len(candidates), bonus][: len(candidates) + 1], []
    view: Any = SimpleNamespace(chosen=lambda row: asked.append(row) or choices[row])
    accepted, last = match(Candidates(tuple(candidates)), view)
    assert candidates[:accepted] == choices[:accepted] and last == choices[accepted]
    assert accepted == len(candidates) or candidates[accepted] != choices[accepted]
    assert asked == list(range(accepted + 1)), "rows behind the correction cost nothing"


def test_counting_is_fixed_once() -> None:
    """Drafted and accepted exclude the bonus token; rounds include those without a draft."""
    stats = Stats()
    for source, drafted, accepted in (("", 0, 0), ("suffix", 4, 4), ("draft_model", 3, 1), ("draft_model", 2, 0)):
        stats.count_round(source, drafted, accepted)
    assert (stats.rounds, stats.drafted, stats.accepted) == (4, 9, 5)
    assert (stats.rounds_full, stats.rounds_partial, stats.rounds_none) == (1, 1, 1)
    assert stats.by_source == {"suffix": Counts(4, 4), "draft_model": Counts(5, 1)}


def test_sums_keep_every_number_and_each_note_once() -> None:
    total, one = Stats(), Stats(prompt_tokens=3, committed=5, draft_ms=1.5, notes=["trimmed"])
    one.count_round("suffix", 2, 1)
    total.add(one)
    total.add(one)
    assert (total.prompt_tokens, total.committed, total.rounds, total.draft_ms) == (6, 10, 2, 3.0)
    assert total.by_source["suffix"] == Counts(4, 2)
    assert one.by_source["suffix"] == Counts(2, 1)
    assert total.notes == ["trimmed"]
