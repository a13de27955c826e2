"""Draft with a small language model that has its own tokenizer, KV cache and possibly shorter context.

Its input and output are bytes. After each commit, the drafter rolls back to the longest common byte prefix of its draft
and the committed text, and encodes only the rest. If both models share a vocabulary, ids are passed through directly.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from codespec.api.types import CompletionRequest, Owner
from codespec.backends.language_model import LanguageModel, Logits, Rows, on_host
from codespec.backends.slots import CacheUse, SlotPool
from codespec.errors import FIELD, Fault, RequestError, TokenizerError
from codespec.proposers.base import NOTHING, Proposer, budget_bytes
from codespec.proposers.drafter_text import REFILL, DrafterText, open_text
from codespec.sequence import Cap, Draft, Sequence
from codespec.text.fim_templates import FimMissing, find_template
from codespec.text.layout import Layouts
from codespec.text.tokenizer import TextTokenizer
from codespec.verify.noise import row_key, uniform
from codespec.verify.sampling import Position, Row, SampledRow, Sampler, draw, prepare, probabilities
from codespec.verify.verifier import device_sampler_of

DRAFTING = 3  # purpose of the noise (see verify.acceptance)
MAX_UNITS_A_TOKEN = 3  # a drafter token may cover fewer bytes than a target token


@dataclass(slots=True, eq=False)
class Guess:
    """A draft in progress. `held` bytes are certain and precede it."""

    place: int  # index in the batch of `propose`
    sequence: Sequence
    text: DrafterText
    cap: Cap
    units: int  # maximum drafter tokens
    budget: int  # bytes
    held: bytes
    drafted: bytearray = field(default_factory=bytearray)
    ids: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    probabilities: list[Row] = field(default_factory=list)

    @property
    def drawn(self) -> bool:
        """Whether its tokens are sampled independently and their probabilities passed to the target."""
        request = self.sequence.request
        return self.text.shared and request.rule == "rejection" and request.temperature > 0.0

    def rows(self) -> Rows:
        """Return the rows that the drafter has not processed yet."""
        pending = self.text.pending
        return Rows(self.text.slot, self.text.cached, pending)

    def draft(self, source: str) -> Draft:
        """Return the finished draft."""
        if not self.ids:
            return NOTHING
        ids = tuple(self.ids) if self.text.shared else None
        text, probabilities = self.held + bytes(self.drafted), tuple(self.probabilities)
        return Draft(text, source, tuple(self.ends), tuple(self.confidences), ids, probabilities)


class DraftModel(Proposer):
    """Proposer for any causal language model, batched over sequences.

    `context` is in the drafter's tokens. `chunk` is the number of its tokens prefilled at a time if other sequences are
    waiting.
    """

    name = "draft_model"

    def __init__(
        self,
        model: LanguageModel,
        context: int,
        slots: int,
        target: TextTokenizer | None = None,
        chunk: int = 256,
    ) -> None:
        self.model = model
        self.context = context
        self.chunk = chunk
        template = find_template(model.tokenizer)
        self.template = None if isinstance(template, FimMissing) else template
        self.shared = target is not None and target.fingerprint == model.tokenizer.fingerprint
        self._sampler = Sampler(model.token_bytes)
        self._device_sampler = device_sampler_of(model)
        self._spelled = [number for number, spelled in enumerate(model.token_bytes) if spelled]
        self.slots = SlotPool(slots, model.resumable)
        self._layouts = Layouts()
        self._texts: dict[Sequence, DrafterText] = {}

    @property
    def models(self) -> Mapping[str, LanguageModel]:
        """The drafter."""
        return {self.name: self.model}

    @property
    def caches(self) -> Mapping[str, CacheUse]:
        """The drafter's cache."""
        return {"drafter": CacheUse.of(self.slots, self.model.cache)}

    def check(self, request: CompletionRequest, length: int) -> None:
        """Raise RequestError if the request uses rejection and the drafter can't provide probabilities for it.

        It needs the target's vocabulary and a context of at least `length` tokens.
        """
        if request.rule != "rejection":
            return
        if not self.shared:
            what = f"{FIELD} must be match, because this drafter has its own vocabulary"
            raise RequestError(Fault("invalid_field", what, field="rule"))
        if length > self.context:
            what = f"The prompt and the completion have {length} tokens, and the drafter reads {self.context}"
            raise RequestError(Fault("too_long", what, "send less text, or set rule to match", "rule"))

    def warm_for(self, owner: Owner) -> tuple[str, ...]:
        """Return its own name if a slot still holds text of this owner."""
        return (self.name,) if self.slots.holds(owner) else ()

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Draft for all sequences with a nonzero cap, one token of each per forward."""
        drafts = [NOTHING] * len(sequences)
        own = [cap.of(self.name) for cap in caps]
        guesses = [self._open(i, s, cap) for i, (s, cap) in enumerate(zip(sequences, own, strict=True)) if cap.tokens]
        going = started = self._ready([guess for guess in guesses if guess is not None], alone=len(sequences) == 1)
        while going:
            logits = self.model.step([guess.rows() for guess in going])
            for guess in going:
                guess.text.cached = guess.text.length
            chosen = self._choose(going, logits)
            going = [guess for guess, (token, p) in zip(going, chosen, strict=True) if self._extend(guess, token, p)]
        for guess in started:
            drafts[guess.place] = guess.draft(self.name)
        return drafts

    def _ready(self, guesses: list[Guess], *, alone: bool) -> list[Guess]:
        """Return the guesses that can be drafted now.

        If there are other sequences, one with more unread text than a chunk first prefills a chunk per round.
        """
        late = [] if alone else [guess for guess in guesses if len(guess.text.pending) > self.chunk]
        self._catch_up([guess.text for guess in late])
        return [guess for guess in guesses if guess not in late]

    def read(self, sequence: Sequence) -> bool:
        """Prefill a chunk of the unread text, except for the last token, whose logits only a draft needs."""
        text = self._text_of(sequence)
        if text is None or not self._sync(text, sequence):
            return False
        return self._catch_up([text])

    def _catch_up(self, texts: collections.abc.Sequence[DrafterText]) -> bool:
        """Prefill a chunk of each text with more than one pending token. Return whether any still has more."""
        behind = [(text, text.pending[:-1][: self.chunk]) for text in texts if len(text.pending) > 1]
        if behind:
            self.model.step([Rows(text.slot, text.cached, ids, keep=0) for text, ids in behind])
        for text, ids in behind:
            text.cached += len(ids)
        return any(len(text.pending) > 1 for text in texts)

    def pause(self, sequence: Sequence) -> None:
        """Free its slot, as at its end."""
        self.release(sequence)

    def release(self, sequence: Sequence) -> None:
        """Free the drafter's slot. Its contents may serve a later prompt with the same prefix."""
        text = self._texts.pop(sequence, None)
        if text is not None:
            held = [*text.head, *text.ids][: text.cached]
            self.slots.release(text.slot, held, self.model.rotary_key(self.context))

    def _open(self, place: int, sequence: Sequence, cap: Cap) -> Guess | None:
        """Sync the drafter with the sequence's text and return a new guess, or None if it can't draft here."""
        text = self._text_of(sequence)
        if text is None:
            return None
        in_step = self._sync(text, sequence)
        if in_step and text.length + self._units(text, cap) > self.context and not text.shared:
            text = self._read(sequence, text) or text
            in_step = self._sync(text, sequence)
        units = self._units(text, cap)
        if not in_step or text.length + units > self.context:
            return None
        held = sequence.known[len(sequence.generated) :]
        return Guess(place, sequence, text, cap, units, budget_bytes(sequence, cap), held)

    def _sync(self, text: DrafterText, sequence: Sequence) -> bool:
        """Roll back to the confirmed text, in the slot too. Return False if the text ends inside a character."""
        in_step = text.sync(self.model.tokenizer, sequence)
        text.cached = self.model.resume(text.slot, max(0, min(text.cached, text.length - 1)))
        return in_step

    def _text_of(self, sequence: Sequence) -> DrafterText | None:
        """Return the drafter's text of a sequence, or None if it can't represent it."""
        text = self._texts.get(sequence) or self._read(sequence)
        if text is not None and text.shared and max(sequence.ids) >= self.model.spec.vocab_size:
            return None  # ids without text may be outside the drafter's embedding, even with a shared vocabulary
        return text

    def _units(self, text: DrafterText, cap: Cap) -> int:
        """Return the drafter tokens allowed for a cap, at most what a moved window leaves free."""
        if text.shared:
            return cap.tokens
        return min(MAX_UNITS_A_TOKEN * cap.tokens, self.context // REFILL)

    def _read(self, sequence: Sequence, old: DrafterText | None = None) -> DrafterText | None:
        """Lay out the text and acquire the slot that already holds its longest prefix.

        Returns None if the drafter's vocabulary can't encode the text.
        """
        if self.shared and not sequence.held and sequence.length_limit <= self.context:
            text = DrafterText(-1, ids=list(sequence.ids), shared=True)
        else:
            try:
                layout = self._layouts.of(sequence.request.owner)
                text = open_text(self.model.tokenizer, self.template, sequence, self.context, layout)
            except TokenizerError:
                return None
        key = self.model.rotary_key(self.context)
        if old is not None:
            self.slots.release(old.slot, [*old.head, *old.ids][: old.cached], key)
        lease = self.slots.acquire([*text.head, *text.ids], key, sequence.request.owner)
        text.slot = lease.slot
        text.cached = self.model.resumable(lease.source, min(lease.shared, max(0, text.length - 1)))
        if lease.source != lease.slot and text.cached:
            self.model.fork(lease.source, lease.slot, text.cached)
        self.model.admit(text.slot, self.context, text.cached)
        self.model.keep_for_later(text.slot, [*text.head, *text.ids])
        sequence.stats.drafter_prompt_tokens += text.length
        sequence.stats.drafter_cached_tokens += text.cached
        self._texts[sequence] = text
        return text

    def _choose(self, guesses: list[Guess], logits: Logits) -> list[tuple[int, float]]:
        """Return the drafter's next token for each guess, with its probability. May modify the logits.

        It is the argmax, or the choice under the target's noise if sampling.
        """
        asked = [SampledRow(guess.sequence.request, guess.sequence.choice, self._position(guess)) for guess in guesses]
        if self._device_sampler is not None and not any(guess.drawn for guess in guesses):
            return self._device_sampler.draft(logits, asked)
        rows = on_host(logits)
        own, best = rows.copy(), rows.max(axis=1)  # before the sampler modifies them
        sums = np.exp(rows - best[:, None]).sum(axis=1)
        tokens = [
            self._draw(guess, row, one.position)
            if guess.drawn
            else self._sampler.choose(row[None], one.request, one.choice, [one.position])[0]
            for guess, row, one in zip(guesses, rows, asked, strict=True)
        ]
        return [
            (token, float(np.exp(row[token] - most) / total))
            for token, row, most, total in zip(tokens, own, best, sums, strict=True)
        ]

    def _position(self, guess: Guess) -> Position:
        sequence, penalized = guess.sequence, guess.sequence.request.repetition_penalty != 1.0
        offset = len(sequence.generated) + len(guess.held) + len(guess.drafted)
        silent = sequence.silent if offset == len(sequence.generated) else 0
        return Position(offset, silent, guess.text.ids if penalized else ())

    def _draw(self, guess: Guess, row: Row, position: Position) -> int:
        """Sample a token independently of the target's noise, for a draft that is verified by rejection."""
        request, sequence = guess.sequence.request, guess.sequence
        prepare(row, request, replace(position, allowed=self._spelled))
        guess.probabilities.append(probabilities(row, request))
        key = row_key(request.seed, sequence.choice, position.offset, position.silent, DRAFTING, len(sequence.ids))
        return draw(guess.probabilities[-1], uniform(key))

    def _extend(self, guess: Guess, token: int, confidence: float) -> bool:
        """Append one drafter token to a guess. Return whether the guess continues."""
        spelled = self.model.token_bytes[token]
        if not spelled:
            return False
        guess.text.append(token, spelled)
        guess.drafted += spelled
        guess.ids.append(token)
        guess.ends.append(len(guess.held) + len(guess.drafted))
        guess.confidences.append(confidence)
        enough = not guess.text.shared and len(guess.drafted) >= guess.budget
        if enough or len(guess.ids) >= guess.units:
            return False
        return guess.cap.goes_on(guess.confidences)  # keeps the unsure unit: a rejected tail costs one row
