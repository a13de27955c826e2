"""The state of one text being generated, and the values of a round: cap, draft, candidates and verdict.

The proposers, the verifier and the engine read these classes, which depend on no model or tokenizer.
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
    """Limits of a draft: the length in target tokens after retokenization, and the confidence needed to continue.

    `by_source` maps the names of proposers to caps of their own.
    """

    tokens: int
    min_confidence: float = 0.0
    by_source: Mapping[str, Cap] = field(default_factory=dict)

    def of(self, source: str) -> Cap:
        """Return the cap of the proposer `source`, whose `tokens` are at most those of this cap."""
        own = self.by_source.get(source)
        if own is None:
            return self
        return own if own.tokens <= self.tokens else replace(own, tokens=self.tokens)

    def goes_on(self, confidences: collections.abc.Sequence[float]) -> bool:
        """Return whether drafting continues after units with these confidences (at least one)."""
        return confidences[-1] >= self.min_confidence


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft as text. Unit i ends at byte `ends[i]`, and the proposer gives it the probability `confidences[i]`.

    `ids` holds the draft's target ids if the drafter shares the target's vocabulary; they need no retokenization.
    `probabilities` holds, for each id, the distribution [vocabulary] from which it was sampled, and is empty for drafts
    that were not sampled.
    """

    text: bytes = b""
    source: str = ""
    ends: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()
    ids: tuple[int, ...] | None = None
    probabilities: tuple[NDArray[np.float32], ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Candidates:
    """A draft in target tokens, ready for verification.

    `reason` explains the draft's length to the user. `confidences` has the proposer's probability of each id. `units`
    is the number of the proposer's own units in the draft. `left_out` holds the ids that a policy trimmed from the end;
    the target's next token shows whether the first of them was right. `probabilities` are those of the `Draft`.
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
    """The target's decision on one sequence's candidates.

    `accepted` is the number of accepted ids. `committed` holds the accepted ids and the target's next one. `logprobs`
    has an entry for each committed id if the request wants log-probabilities.
    """

    accepted: int
    committed: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(slots=True)
class Outlook:
    """What draft policies know about one sequence. The syntax context is tracked only if a policy uses it.

    `context` is the `codespec_grammars` context class at the end of the text, `read` the number of bytes of `known`
    that the tracker has consumed, and `seconds` the time that tracking took in this step. `read_by` maps a proposer to
    the number of `ids` that the proposer has read; by default, the number that the target had cached at the
    start. `lost` is the cost of all drafts in plain rounds, minus the accepted tokens (`speculation.cost_policy`).
    """

    context: str = "unknown"
    language: str = ""
    tracker: ContextTracker | None = None
    read: int = 0
    seconds: float = 0.0
    read_by: dict[str, int] = field(default_factory=dict)
    lost: float = 0.0


@dataclass(slots=True, eq=False)
class Sequence:
    """A request in progress, or one choice of a request.

    `ids` are target ids and start with the prompt. `generated` holds the bytes after the prompt's last token. These
    begin with `held`, the bytes that token healing removed from the prompt. `context` is the prefix without the held
    bytes. `continues` is false if a marker separates `context` from the target's next token.
    """

    request: CompletionRequest
    choice: int
    prompt_ids: list[int]
    context: bytes
    held: bytes
    continues: bool
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
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of the committed ids, if requested
    generated: bytearray = field(default_factory=bytearray)
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
        """Ids that the target has not processed yet: 1 while decoding, more during prefill."""
        return len(self.ids) - self.cached

    @property
    def only_reads(self) -> bool:
        """Whether the request is a warm-up, which prefills the prompt and generates nothing."""
        return self.request.max_tokens == 0

    @property
    def num_wanted(self) -> int:
        """Pending ids that the target must process: all, or all but the last for a warm-up, which needs no logits."""
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
        """Held bytes that the next tokens must spell."""
        return self.held[len(self.generated) :]

    @property
    def known(self) -> bytes:
        """The known bytes after `context`: the generated bytes, or the held bytes if there are more of them."""
        return bytes(self.generated) if len(self.generated) >= len(self.held) else self.held

    def follow_syntax(self) -> None:
        """Advance the tracker by the new `known` bytes and update `outlook.context` and `outlook.seconds`.

        The tracker starts from the language server's cursor, if any, and then lexes only: parsing in a separate process
        took 0.4 to 0.7 ms per round and did not improve draft lengths.
        """
        outlook, known = self.outlook, self.known
        if outlook.tracker is not None and outlook.read == len(known):
            return
        began = time.perf_counter()
        if outlook.tracker is None:
            outlook.tracker = self._track()
        outlook.tracker.advance(known[outlook.read :])
        outlook.read = len(known)
        outlook.context = outlook.tracker.context(parse=False).context.value
        outlook.seconds += time.perf_counter() - began

    def window(self) -> bytes:
        """Return the last bytes before the next target token, which retokenization reads."""
        tail = bytes(self.generated[-_TAIL:])
        if len(tail) < _TAIL and self.continues:
            tail = self.context[len(tail) - _TAIL :] + tail
        return tail_window(tail)

    def bytes_per_token(self) -> float:
        """Return the average number of bytes per generated target token, or 3.0 for fewer than 8 tokens."""
        return len(self.generated) / self.num_generated if self.num_generated >= 8 and self.generated else 3.0

    def _track(self) -> ContextTracker:
        """Return a new tracker at the cursor, which is after the held bytes."""
        request, outlook = self.request, self.outlook
        text = self.context + self.held
        place = find_place(request.language, request.path, text, request.suffix.encode())
        outlook.language, outlook.read = place.language, len(self.held)
        return ContextTracker(place.language, place.prefix, place.suffix, sent=request.cursor)
