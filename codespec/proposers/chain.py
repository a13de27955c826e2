"""Several proposers behind one another, cheapest first: each sequence gets the first draft that is worth its cap."""

from __future__ import annotations

import collections.abc

from codespec.proposers.base import NOTHING, Proposer
from codespec.sequence import Cap, Draft, Sequence


class ChainProposer:
    """Asks the proposers in turn; only sequences still without a draft go on to the next one."""

    name = "chain"

    def __init__(self, proposers: collections.abc.Sequence[Proposer]) -> None:
        self.proposers = tuple(proposers)

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """The first non-empty draft for each sequence."""
        drafts = [NOTHING] * len(sequences)
        for proposer in self.proposers:
            own = [cap.of(proposer.name) for cap in caps]
            waiting = [i for i, draft in enumerate(drafts) if not draft.text and not draft.ids and own[i].tokens]
            if not waiting:
                continue
            found = proposer.propose([sequences[i] for i in waiting], [own[i] for i in waiting])
            for i, draft in zip(waiting, found, strict=True):
                drafts[i] = draft
        return drafts

    def read(self, sequence: Sequence) -> bool:
        """Each proposer reads a piece."""
        return any([proposer.read(sequence) for proposer in self.proposers])

    def commit(self, sequence: Sequence) -> None:
        """Tells every proposer."""
        for proposer in self.proposers:
            proposer.commit(sequence)

    def release(self, sequence: Sequence) -> None:
        """Tells every proposer."""
        for proposer in self.proposers:
            proposer.release(sequence)
