"""The proposer interface, and the chain of proposers. They return drafts as text and do not know verification."""

from __future__ import annotations

import collections.abc
from collections.abc import Mapping
from typing import TYPE_CHECKING

from codespec.api.types import CompletionRequest, Owner
from codespec.backends.language_model import LanguageModel
from codespec.backends.slots import CacheUse
from codespec.sequence import Cap, Draft, Sequence

if TYPE_CHECKING:
    from codespec.backends.heads.drafting import HeadRunner

NOTHING = Draft()


class Proposer:
    """A source of drafts: a lookup, a small model, or a chain of proposers.

    All methods except `propose` have defaults that suit a proposer without per-sequence state.
    """

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """Source names that its drafts may have, cheapest first."""
        return (self.name,)

    @property
    def models(self) -> Mapping[str, LanguageModel]:
        """The drafting language models by source."""
        return {}

    @property
    def heads(self) -> Mapping[str, HeadRunner]:
        """The heads that draft from the target's hidden states, by source."""
        return {}

    @property
    def caches(self) -> Mapping[str, CacheUse]:
        """Cache usage by model role. May be read from another thread."""
        return {}

    def check(self, request: CompletionRequest, length: int) -> None:
        """Raise RequestError if this proposer can't draft for the request as specified.

        `length` is the maximum length of the text in target tokens.
        """

    def warm_for(self, owner: Owner) -> tuple[str, ...]:
        """Return the sources that have processed about as much of this owner's text as the target has."""
        return ()

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Return one draft per sequence, empty if it has none or the cap is 0. Does not modify the sequences."""
        raise NotImplementedError

    def look_up_in(self, owner: Owner, files: collections.abc.Sequence[bytes]) -> None:
        """Set the files that drafts for this owner's texts may copy from. Replaces the previous files."""

    def read(self, sequence: Sequence) -> bool:
        """Prefill a chunk of the sequence's text before its first draft. Return whether more remains."""
        return False

    def pause(self, sequence: Sequence) -> None:
        """Called when the sequence pauses; its slots may be released."""

    def release(self, sequence: Sequence) -> None:
        """Called when the sequence has finished; its state may be dropped."""


def budget_bytes(sequence: Sequence, cap: Cap) -> int:
    """Return the likely number of bytes in `cap` target tokens, with a margin. The token limit is applied later."""
    return max(1, round(cap.tokens * sequence.bytes_per_token() * 1.25))


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
