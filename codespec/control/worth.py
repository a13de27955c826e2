"""A cap that is no number: drafting goes on while that pays. Knows confidences; who weighs them is told."""

from __future__ import annotations

import collections.abc
from collections.abc import Callable
from dataclasses import dataclass

from codespec.sequence import Cap


@dataclass(frozen=True, slots=True)
class Worth(Cap):
    """A cap that asks unit by unit whether going on pays."""

    pays: Callable[[collections.abc.Sequence[float]], bool] = bool

    def goes_on(self, confidences: collections.abc.Sequence[float]) -> bool:
        """As `pays` says."""
        return self.pays(confidences)
