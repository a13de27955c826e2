"""Proposers are asked in order, and later ones only for sequences without a draft."""

from __future__ import annotations

from collections.abc import Sequence as Several

from codespec.proposers.base import first_drafts
from codespec.sequence import Cap, Draft, Sequence
from tests.pairs import Scripted
from tests.proposers.test_lookup import sequence_of


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
