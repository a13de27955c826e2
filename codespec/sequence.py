"""The state of one text being generated, and the values passed in a round: cap, draft, candidates, verdict.

The proposers, the verifier and the engine use these classes, which do not depend on a model or tokenizer.
"""

from __future__ import annotations

import collections.abc
import time
from codecs import IncrementalDecoder, getincrementaldecoder
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from codespec_grammars import ContextTracker, find_place

from codespec.api.types import CompletionRequest, Event, FinishReason, Stats, TokenLogprob
from codespec.text.align import tail_window
from codespec.text.ending import Ending
from codespec.text.filters import StopFinder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TAIL = 32  # bytes before a draft; `tail_window` reads fewer


@dataclass(frozen=True, slots=True)
class Cap:
    """Limits of a draft."""

    tokens: int  # length in target tokens after retokenization
    min_confidence: float = 0.0  # confidence of a unit that is needed to draft another unit
    by_source: Mapping[str, Cap] = field(default_factory=dict)  # caps of single proposers, by the proposer's name

    def of(self, source: str) -> Cap:
        """Return the cap for the proposer `source`, with at most as many `tokens` as this cap."""
        own = self.by_source.get(source)
        if own is None:
            return self
        return own if own.tokens <= self.tokens else replace(own, tokens=self.tokens)

    def goes_on(self, confidences: collections.abc.Sequence[float]) -> bool:
        """Return whether drafting continues after one or more units with these confidences."""
        return confidences[-1] >= self.min_confidence


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft as text."""

    text: bytes = b""
    source: str = ""
    ends: tuple[int, ...] = ()  # byte offset at which each unit ends
    confidences: tuple[float, ...] = ()  # probability of each unit
    ids: tuple[int, ...] | None = None  # the draft's target ids, if the drafter shares the target's vocabulary
    # The distribution [vocabulary] from which each id was sampled; empty for drafts that were not sampled.
    probabilities: tuple[NDArray[np.float32], ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Candidates:
    """A draft in target tokens, ready for verification."""

    ids: tuple[int, ...] = ()
    source: str = ""
    reason: str = ""  # explains the draft's length to the user
    confidences: tuple[float, ...] = ()  # the proposer's probability of each id
    units: int = 0  # number of units that the proposer drafted
    left_out: tuple[int, ...] = ()  # ids trimmed from the end; the target's next token verifies the first
    probabilities: tuple[NDArray[np.float32], ...] = field(default=(), compare=False, repr=False)  # of the `Draft`


@dataclass(frozen=True, slots=True)
class Verdict:
    """The target's decision on one sequence's candidates."""

    accepted: int  # number of accepted ids
    committed: tuple[int, ...]  # the accepted ids and the target's next id
    logprobs: tuple[TokenLogprob, ...] = ()  # of each committed id, if requested


@dataclass(slots=True)
class Outlook:
    """The state of one sequence that draft policies use."""

    context: str = "unknown"  # the `codespec_grammars` context class at the end of the text
    language: str = ""
    tracker: ContextTracker | None = None
    read: int = 0  # bytes of `known` that the tracker has consumed
    seconds: float = 0.0  # time that tracking took in this step
    read_by: dict[str, int] = field(default_factory=dict)  # `ids` read by each proposer; default: `stats.cached_tokens`
    lost: float = 0.0  # cost of all drafts, in rounds without drafts, minus the number of accepted tokens


@dataclass(slots=True, eq=False)
class Sequence:
    """A request in progress, or one choice of a request."""

    request: CompletionRequest
    choice: int
    prompt_ids: list[int]
    context: bytes  # the prefix without the held bytes
    held: bytes  # bytes that token healing removed from the prompt, with which `generated` must begin
    continues: bool  # false if a marker separates `context` from the target's next token
    eos_ids: frozenset[int]
    stops: StopFinder
    ending: Ending | None = None  # finds the end of a completion with a shape
    listening: bool = False  # whether a caller reads `events`
    outlook: Outlook = field(default_factory=Outlook)
    slot: int = -1
    had_slot: bool = False  # whether the sequence has ever had a slot, for example before a pause
    feed: int = 0  # pending ids that the target processes in this step
    room: int = 0  # target tokens that may be drafted in this step
    cached: int = 0  # length of the prefix of `ids` in the target's KV cache slot
    ids: list[int] = field(default_factory=list)  # target ids, starting with the prompt
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of the committed ids, if requested
    generated: bytearray = field(default_factory=bytearray)  # the bytes after the prompt's last token
    silent: int = 0  # committed tokens without bytes since the last token with bytes
    cut: int | None = None  # end of the text, in bytes of `generated`; None while it grows
    finish_reason: FinishReason | None = None
    started: float = 0.0  # the request's arrival in seconds of perf_counter
    parent: Sequence | None = None  # the choice whose prefill this one shares
    decoder: IncrementalDecoder = field(default_factory=lambda: getincrementaldecoder("utf-8")("replace"))
    shown: int = 0  # bytes of `generated` that were sent to the stream
    pieces: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)

    def __post_init__(self) -> None:
        self.ids = list(self.prompt_ids)
        self.shown = len(self.held)

    @property
    def num_generated(self) -> int:
        """Number of target tokens committed so far."""
        return len(self.ids) - len(self.prompt_ids)

    @property
    def num_pending(self) -> int:
        """Number of ids that the target has not processed: 1 while decoding, more during prefill."""
        return len(self.ids) - self.cached

    @property
    def only_reads(self) -> bool:
        """Whether the request is a warm-up, which prefills the prompt and generates nothing."""
        return self.request.max_tokens == 0

    @property
    def num_wanted(self) -> int:
        """Number of ids that the target must process: all, or all but the last in a warm-up, which needs no logits."""
        return self.num_pending - self.only_reads

    @property
    def length_limit(self) -> int:
        """Maximum length in target tokens, prompt included."""
        return len(self.prompt_ids) + self.request.max_tokens

    @property
    def remaining(self) -> int:
        """Number of target tokens that may still be committed."""
        return self.request.max_tokens - self.num_generated

    @property
    def held_left(self) -> bytes:
        """Held bytes that the next tokens must reproduce."""
        return self.held[len(self.generated) :]

    @property
    def known(self) -> bytes:
        """The known bytes after `context`, which are the longer of the generated bytes and the held bytes."""
        return bytes(self.generated) if len(self.generated) >= len(self.held) else self.held

    def follow_syntax(self) -> None:
        """Advance the tracker by the new `known` bytes and update `outlook.context` and `outlook.seconds`."""
        # The tracker lexes but does not parse: parsing in a separate process took 0.4 to 0.7 ms per round and did not
        # improve draft lengths.
        outlook, known = self.outlook, self.known
        if outlook.tracker is not None and outlook.read == len(known):
            return
        began = time.perf_counter()
        if outlook.tracker is None:
            request, text = self.request, self.context + self.held
            place = find_place(request.language, request.path, text, request.suffix.encode())
            outlook.language, outlook.read = place.language, len(self.held)
            outlook.tracker = ContextTracker(place.language, place.prefix, place.suffix, sent=request.cursor)
        outlook.tracker.advance(known[outlook.read :])
        outlook.read = len(known)
        outlook.context = outlook.tracker.context(parse=False).context.value
        outlook.seconds += time.perf_counter() - began

    def window(self) -> bytes:
        """Return the last bytes before the next target token, as context for retokenization."""
        tail = bytes(self.generated[-_TAIL:])
        if len(tail) < _TAIL and self.continues:
            tail = self.context[len(tail) - _TAIL :] + tail
        return tail_window(tail)

    def bytes_per_token(self) -> float:
        """Return the average number of bytes per generated target token, or 3.0 for fewer than 8 tokens."""
        return len(self.generated) / self.num_generated if self.num_generated >= 8 and self.generated else 3.0

    def draft_bytes(self, cap: Cap) -> int:
        """Return 1.25 times the expected number of bytes in `cap.tokens` target tokens."""
        return max(1, round(cap.tokens * self.bytes_per_token() * 1.25))
