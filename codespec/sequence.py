"""One text being written: the single mutable object that travels through a round, and the frozen values it is given.

It lies below proposers, verifier and engine because all of them read it. Knows target ids, bytes and lengths; does not
know models and tokenizers.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from codespec_grammars import ContextTracker

from codespec.text.align import tail_window
from codespec.text.ending import Ending
from codespec.text.streaming import StopFinder, Utf8Stream
from codespec.types import CompletionRequest, Event, FinishReason, Stats, TokenLogprob

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Cap:
    """How far a proposer may guess: in target tokens after retokenization, and down to which confidence of a unit.

    `by_source` holds caps of single proposers, by name, where those differ.
    """

    tokens: int
    min_confidence: float = 0.0
    by_source: Mapping[str, Cap] = field(default_factory=dict)

    def of(self, source: str) -> Cap:
        """The cap of one proposer, never longer than this one."""
        own = self.by_source.get(source)
        if own is None:
            return self
        return own if own.tokens <= self.tokens else replace(own, tokens=self.tokens)

    def goes_on(self, confidences: collections.abc.Sequence[float]) -> bool:
        """Whether units of these confidences (at least one) are worth having and going on from."""
        return confidences[-1] >= self.min_confidence


@dataclass(frozen=True, slots=True)
class Draft:
    """A guess as text. `ends[i]` is the byte behind unit i, `confidences[i]` the proposer's probability for it.

    `ids` are target ids where drafter and target share a vocabulary; then nothing is retokenized. `probabilities` are
    the probabilities [vocabulary] that each of them was drawn from; without, the draft is just what it is.
    """

    text: bytes = b""
    source: str = ""
    ends: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()
    ids: tuple[int, ...] | None = None
    probabilities: tuple[NDArray[np.float32], ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Candidates:
    """A draft in the target's own tokens, ready to be verified; `reason` says why it is as long as it is.

    `confidences` are the proposer's, one an id; `units` is how many units of its own it drafted for them; `left_out`
    are the ids behind, which a policy trimmed: the first of them is judged for nothing by the target's next choice.
    `probabilities` are the draft's, one an id or none.
    """

    ids: tuple[int, ...] = ()
    source: str = ""
    reason: str = ""
    confidences: tuple[float, ...] = ()
    units: int = 0
    left_out: tuple[int, ...] = ()
    probabilities: tuple[NDArray[np.float32], ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target said of a sequence's candidates: how many it agrees with, and what to commit (those and one
    more), each with its log-probability where that was asked for.
    """

    accepted: int
    committed: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(slots=True)
class Outlook:
    """What is expected of one sequence's next tokens. The context is followed where a policy asks for it.

    `context` is a class of `codespec_grammars` at the tip, `read` the bytes of `known` that the tracker has, `seconds`
    what following took in this step. By proposer: `log_odds`, how much more often than expected its drafts were right
    lately, and `read_by`, the length of `ids` when it last guessed. `lost` are the plain rounds that drafts took, less
    the tokens that were right (`speculation.budget`).
    """

    context: str = "unknown"
    language: str = ""
    tracker: ContextTracker | None = None
    read: int = 0
    seconds: float = 0.0
    log_odds: dict[str, float] = field(default_factory=dict)
    read_by: dict[str, int] = field(default_factory=dict)
    lost: float = 0.0


@dataclass(slots=True, eq=False)
class Sequence:
    """A request (one choice of it) under way.

    `ids` are the target's, prompt first. `generated` are the bytes since the prompt's last token; they begin with
    `held`, the bytes that healing gave back. `context` is the text before them (prefix without the held bytes), and
    `continues` says whether the target's own tokens run on from it (they do not in prefix-suffix-middle order).
    """

    request: CompletionRequest
    choice: int
    prompt_ids: list[int]
    context: bytes
    held: bytes
    continues: bool
    eos_ids: frozenset[int]
    stops: StopFinder
    ending: Ending | None = None  # finds the end of a completion that has a shape
    listening: bool = False  # someone reads `events`
    audit: bool = False  # written before, and now again to be compared: nothing learns from it or counts it
    outlook: Outlook = field(default_factory=Outlook)
    slot: int = -1
    had_slot: bool = False  # has been in one, perhaps before a pause
    feed: int = 0  # how many pending ids the target sees in this step
    room: int = 0  # how many target tokens may be drafted in this step
    cached: int = 0  # how many of `ids` have keys and values in the target's slot
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of the committed ids, where the request asks
    generated: bytearray = field(default_factory=bytearray)
    silent: int = 0  # committed tokens without bytes since the last one with
    last_size: int = 0  # bytes of the last committed token
    cut: int | None = None  # where the text ends, in bytes of `generated`; None while it grows
    finish_reason: FinishReason | None = None
    deadline: float | None = None  # seconds on the engine's clock
    started: float = 0.0
    parent: Sequence | None = None  # the choice whose prefill this one shares
    stream: Utf8Stream = field(default_factory=Utf8Stream)
    shown: int = 0  # bytes of `generated` handed to the stream
    pieces: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)

    def __post_init__(self) -> None:
        self.ids = list(self.prompt_ids)
        self.shown = len(self.held)

    @property
    def num_generated(self) -> int:
        """Target tokens committed so far."""
        return len(self.ids) - len(self.prompt_ids)

    @property
    def num_pending(self) -> int:
        """Ids that the target has not seen yet; 1 while decoding, more while prefilling."""
        return len(self.ids) - self.cached

    @property
    def only_reads(self) -> bool:
        """Whether it is a warm-up: its prompt goes into the caches, and nothing is written."""
        return self.request.max_tokens == 0

    @property
    def num_wanted(self) -> int:
        """Pending ids that the target is to see; of a warm-up not the last, whose row only matters to who writes."""
        return self.num_pending - self.only_reads

    @property
    def length_limit(self) -> int:
        """Target tokens it may grow to, prompt included."""
        return len(self.prompt_ids) + self.request.max_tokens

    @property
    def remaining(self) -> int:
        """Tokens that may still be committed."""
        return self.request.max_tokens - self.num_generated

    @property
    def held_left(self) -> bytes:
        """Held bytes that the next tokens must still spell."""
        return self.held[len(self.generated) :]

    @property
    def known(self) -> bytes:
        """The bytes after `context` that are certain: what was generated, or the held bytes while those are longer."""
        return bytes(self.generated) if len(self.generated) >= len(self.held) else self.held

    def window(self, size: int) -> bytes:
        """About the last `size` bytes that the target's next token follows, for retokenization."""
        tail = bytes(self.generated[-2 * size :])
        if len(tail) < 2 * size and self.continues:
            tail = self.context[len(tail) - 2 * size :] + tail
        return tail_window(tail, size)

    def bytes_per_token(self) -> float:
        """Running ratio of bytes to target tokens in what was generated; 3 until there is enough to tell."""
        return len(self.generated) / self.num_generated if self.num_generated >= 8 and self.generated else 3.0
