"""The seam behind which every guess is made. Knows drafts as text; does not know how the target checks them."""

from __future__ import annotations

import collections.abc
from collections.abc import Mapping

from codespec.models.heads.drafting import HeadRunner
from codespec.models.language_model import LanguageModel
from codespec.models.slots import CacheUse
from codespec.sequence import Cap, Draft, Sequence
from codespec.types import CompletionRequest, Owner

NOTHING = Draft()


class Proposer:
    """Guesses what comes next: a lookup, a small model, or several of them in a chain. All but `propose` has a default
    for a proposer that keeps nothing of a sequence.
    """

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """The sources that its drafts may have, cheapest first."""
        return (self.name,)

    @property
    def models(self) -> Mapping[str, LanguageModel]:
        """The language models that draft, by source."""
        return {}

    @property
    def heads(self) -> Mapping[str, HeadRunner]:
        """The heads that draft from the target's hidden states, by source."""
        return {}

    @property
    def caches(self) -> Mapping[str, CacheUse]:
        """What they hold, by the model's role; may be read from another thread."""
        return {}

    def check(self, request: CompletionRequest, length: int) -> None:
        """Raises RequestError for a request whose text, of up to `length` target tokens, it can't draft as asked."""

    def warm_for(self, owner: Owner) -> tuple[str, ...]:
        """The sources that have read about as much of this owner's text as the target has."""
        return ()

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """One draft a sequence, empty where it has no guess or the cap is 0. Does not change the sequences."""
        raise NotImplementedError

    def look_up_in(self, owner: Owner, files: collections.abc.Sequence[bytes]) -> None:
        """Files that drafts of this owner's texts may copy from, instead of those before."""

    def read(self, sequence: Sequence) -> bool:
        """Reads a piece of the sequence's text ahead of its first draft; whether there is more to read."""
        return False

    def commit(self, sequence: Sequence) -> None:
        """The sequence has grown by what the target chose."""

    def pause(self, sequence: Sequence) -> None:
        """Others run for a while: its slots may go."""

    def release(self, sequence: Sequence) -> None:
        """The sequence is over: whatever was kept for it may go."""


def budget_bytes(sequence: Sequence, cap: Cap) -> int:
    """How many bytes `cap` target tokens are likely to spell (a running ratio; the cut in tokens comes after)."""
    return max(1, round(cap.tokens * sequence.bytes_per_token() * 1.25))
