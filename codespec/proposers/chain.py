"""Chain proposers, cheapest first: each sequence gets the first non-empty draft."""

from __future__ import annotations

import collections.abc
from collections.abc import Mapping
from typing import TYPE_CHECKING

from codespec.contract.types import CompletionRequest, Owner
from codespec.models.language_model import LanguageModel
from codespec.models.slots import CacheUse
from codespec.proposers.base import NOTHING, Proposer
from codespec.sequence import Cap, Draft, Sequence

if TYPE_CHECKING:
    from codespec.models.heads.drafting import HeadRunner


class ChainProposer(Proposer):
    """Calls the proposers in turn; only sequences without a draft go on to the next one.

    An empty chain drafts nothing.
    """

    name = "chain"

    def __init__(self, proposers: collections.abc.Sequence[Proposer]) -> None:
        self.proposers = tuple(proposers)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all proposers, in order."""
        return tuple(name for proposer in self.proposers for name in proposer.names)

    @property
    def models(self) -> Mapping[str, LanguageModel]:
        """Models of all proposers."""
        return {name: model for proposer in self.proposers for name, model in proposer.models.items()}

    @property
    def heads(self) -> Mapping[str, HeadRunner]:
        """Heads of all proposers."""
        return {name: head for proposer in self.proposers for name, head in proposer.heads.items()}

    @property
    def caches(self) -> Mapping[str, CacheUse]:
        """Caches of all proposers."""
        return {name: use for proposer in self.proposers for name, use in proposer.caches.items()}

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Return the first non-empty draft for each sequence."""
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

    def check(self, request: CompletionRequest, length: int) -> None:
        """Check the request with every proposer."""
        for proposer in self.proposers:
            proposer.check(request, length)

    def warm_for(self, owner: Owner) -> tuple[str, ...]:
        """Return the warm sources of all proposers."""
        return tuple(name for proposer in self.proposers for name in proposer.warm_for(owner))

    def look_up_in(self, owner: Owner, files: collections.abc.Sequence[bytes]) -> None:
        """Forward to every proposer."""
        for proposer in self.proposers:
            proposer.look_up_in(owner, files)

    def read(self, sequence: Sequence) -> bool:
        """Prefill a chunk in every proposer. Return whether any has more."""
        return any([proposer.read(sequence) for proposer in self.proposers])

    def pause(self, sequence: Sequence) -> None:
        """Forward to every proposer."""
        for proposer in self.proposers:
            proposer.pause(sequence)

    def release(self, sequence: Sequence) -> None:
        """Forward to every proposer."""
        for proposer in self.proposers:
            proposer.release(sequence)
