"""What handlers read of an engine, or of its stand-in for another server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from codespec.contract.types import Owner
from codespec.engine.metrics import Metrics
from codespec.models.slots import CacheUse
from codespec.text.tokenizer import TextTokenizer


class Target(Protocol):
    """What handlers read of the model that decides."""

    @property
    def tokenizer(self) -> TextTokenizer:
        """Its tokenizer."""

    @property
    def device(self) -> object:
        """Where it runs."""


class Writer(Protocol):
    """What handlers read of an engine, or of its stand-in for another server."""

    notes: list[str]
    metrics: Metrics

    @property
    def target(self) -> Target:
        """The model that decides."""

    @property
    def mode(self) -> str:
        """exact, fast or upstream."""

    @property
    def kernel(self) -> str:
        """The kernel for int8 weights, or ""."""

    @property
    def variance(self) -> str:
        """Why exact mode does not hold, or ""."""

    @property
    def prompt_budget(self) -> int:
        """Maximum tokens of an editor prompt."""

    @property
    def caches(self) -> dict[str, CacheUse]:
        """Usage of the caches."""

    @property
    def files(self) -> Mapping[Owner, tuple[bytes, ...]]:
        """The files of `look_up_in` by owner, the least recently sent first."""

    def look_up_in(self, owner: Owner, files: Sequence[bytes]) -> None:
        """Set the files that drafts may copy from."""
