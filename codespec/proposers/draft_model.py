"""Draft with a small language model that has its own tokenizer, fill-in-the-middle markers, KV cache and context.

The drafter and the target exchange only bytes, unless they share a vocabulary. After each commit, the drafter rolls
back to the longest common byte prefix of its draft and the committed text, and encodes only the rest. When the
drafter's context is full, its window moves and the text in the window is encoded again.
"""

from __future__ import annotations

import collections.abc
import math
from dataclasses import dataclass, field, replace

import numpy as np

from codespec.api.types import CompletionRequest, FinishReason, fills_in
from codespec.backends.language_model import LanguageModel, Logits, Rows, SlotPool, common_prefix, on_host
from codespec.errors import FIELD, Fault, RequestError, TokenizerError
from codespec.proposers.base import Guess, UnitProposer
from codespec.sequence import Cap, Sequence
from codespec.text.align import complete_utf8_length, resync
from codespec.text.fim import Layout, Layouts, build_prompt
from codespec.text.fim_templates import FimMissing, FimTemplate, find_template
from codespec.text.tokenizer import TextTokenizer
from codespec.verify.sampling import Position, Row, SampledRow, Sampler, draw, prepare, probabilities, row_key, uniform
from codespec.verify.verifier import DRAFTING, device_sampler_of

REFILL = 4  # after the window moves, 1/REFILL of the context is free
MAX_UNITS_A_TOKEN = 3  # drafter tokens per target token, which may have more bytes


@dataclass(slots=True, eq=False)
class DrafterText:
    """One sequence in drafter tokens: the ids in `head`, which end with the last marker, and then `ids`."""

    slot: int
    head: list[int] = field(default_factory=list)
    base: bytes = b""  # the part of the prompt that `ids` encode
    offset: int = 0  # `ids` also encode the sequence's known bytes from here on
    ids: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # byte offsets at which the ids end
    cached: int = 0  # number of ids, of `head` and `ids`, in the drafter's slot
    confirmed: int = 0  # bytes that the last sync confirmed; they do not change any more
    shared: bool = False  # whether `ids` are target ids

    @property
    def length(self) -> int:
        return len(self.head) + len(self.ids)

    @property
    def pending(self) -> list[int]:
        """Ids that the drafter has not processed: at least the last id, which yields the next logits."""
        self.cached = min(self.cached, self.length - 1)
        before = len(self.head)
        return [*self.head, *self.ids][self.cached :] if self.cached < before else self.ids[self.cached - before :]

    def append(self, token: int, spelled: bytes) -> None:
        """Append a token that consists of these bytes."""
        self.ids.append(token)
        self.ends.append((self.ends[-1] if self.ends else 0) + len(spelled))

    def sync(self, tokenizer: TextTokenizer, sequence: Sequence) -> bool:
        """Replace ids that do not match the known text. Return False if the known text ends inside a character."""
        if self.shared:
            kept = common_prefix(self.ids, sequence.ids)
            self.ids = list(sequence.ids)
            self.cached = min(self.cached, kept)
            return True
        text = self.base + sequence.known[self.offset :]
        if complete_utf8_length(text) < len(text):
            return False
        change = resync(tokenizer, self.ids, self.ends, text, known=self.confirmed)
        del self.ids[change.kept :], self.ends[change.kept :]
        for token in change.new_ids:
            self.append(token, tokenizer.token_bytes[token])
        self.cached = min(self.cached, len(self.head) + change.kept)
        self.confirmed = change.end
        return change.end == len(text) and self.length > 0


def open_text(
    tokenizer: TextTokenizer, template: FimTemplate | None, sequence: Sequence, context: int, layout: Layout
) -> DrafterText:
    """Encode a sequence's prompt and text, without a slot, in at most three quarters of the drafter's `context`."""
    request, known = sequence.request, sequence.known
    prefix = request.prefix.encode()
    surplus = max(0, len(sequence.held) - len(prefix))  # a dummy prefix that healing removed
    before = prefix[: len(prefix) + surplus - len(sequence.held)]
    read = _readable(before + known[surplus:])
    prompt = build_prompt(
        tokenizer,
        template if fills_in(request) else None,
        prefix=read,
        suffix=request.suffix,
        path=request.path,
        snippets=[(s.path, s.text) for s in request.snippets],
        budget=context - context // REFILL,
        layout=layout,
        offset=request.prefix_offset,
        renew=sequence.only_reads,
    )
    last_special = max((i for i, token in enumerate(prompt.ids) if token in tokenizer.special_ids), default=-1)
    offset = len(read.encode()) - len(before) + surplus
    text = DrafterText(-1, head=list(prompt.ids[: last_special + 1]), offset=offset)
    for token in prompt.ids[last_special + 1 :]:
        text.append(token, tokenizer.token_bytes[token])
    text.base = tokenizer.decode_bytes(text.ids)
    return text


def _readable(data: bytes) -> str:
    """Return the text before the first byte that is not valid UTF-8; the first `sync` encodes the remaining bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()


@dataclass(slots=True, eq=False, kw_only=True)
class TextGuess(Guess):
    """A draft in progress, whose tokens are also appended to the drafter's `text`."""

    text: DrafterText

    @property
    def unread(self) -> int:
        """Number of tokens that the drafter has not processed."""
        return len(self.text.pending)

    @property
    def before(self) -> list[int]:
        """The drafter's ids before the next drafted token, without `head`."""
        return self.text.ids

    @property
    def drawn(self) -> bool:
        """Whether the draft is sampled with noise of its own and verified by rejection sampling."""
        request = self.sequence.request
        return self.as_ids and request.rule == "rejection" and request.temperature > 0.0


class DraftModel(UnitProposer[TextGuess]):
    """A causal language model as a proposer, which reads up to `context` tokens of up to `slots` sequences."""

    name = "draft_model"

    def __init__(
        self, model: LanguageModel, context: int, slots: int, target: TextTokenizer | None = None, chunk: int = 256
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

    def check(self, request: CompletionRequest, length: int) -> None:
        """Raise RequestError for rejection sampling without the target's vocabulary or `length` tokens of context."""
        if request.rule != "rejection":
            return
        if not self.shared:
            what = f"{FIELD} must be match, because this drafter has its own vocabulary"
            raise RequestError(Fault("invalid_field", what, field="rule"))
        if length > self.context:
            what = f"The prompt and the completion have {length} tokens, but the drafter reads only {self.context}"
            raise RequestError(Fault("too_long", what, "send less text, or set rule to match", "rule"))

    def commit(self, sequence: Sequence) -> bool:
        """Prefill a chunk of the unread text, except for the last token, which a draft reads."""
        text = self._text_of(sequence)
        if text is None or not self._sync(text, sequence):
            return False
        return self._catch_up([text])

    def _catch_up(self, texts: collections.abc.Sequence[DrafterText]) -> bool:
        """Prefill a chunk of each text except its last token; return whether other unread tokens remain."""
        behind = [(text, text.pending[:-1][: self.chunk]) for text in texts if len(text.pending) > 1]
        if behind:
            self.model.step([Rows(text.slot, text.cached, ids, keep=0) for text, ids in behind])
        for text, ids in behind:
            text.cached += len(ids)
        return any(len(text.pending) > 1 for text in texts)

    def release(self, sequence: Sequence, reason: FinishReason | None) -> None:
        """Free the sequence's slot, whose contents may serve a later prompt with the same prefix."""
        text = self._texts.pop(sequence, None)
        if text is not None:
            held = [*text.head, *text.ids][: text.cached]
            self.slots.release(text.slot, held, self.model.rotary_key(self.context))

    def _read(self, guesses: list[TextGuess]) -> None:
        self._catch_up([guess.text for guess in guesses])

    def _draft(self, guesses: list[TextGuess]) -> None:
        """Run one forward pass for each token, batched over the guesses that continue."""
        while guesses:
            pending = [(guess.text, guess.text.pending) for guess in guesses]
            logits = self.model.step([Rows(text.slot, text.cached, ids) for text, ids in pending])
            for guess in guesses:
                guess.text.cached = guess.text.length
            chosen = self._choose(guesses, logits)
            guesses = [g for g, (token, chance) in zip(guesses, chosen, strict=True) if self._extend(g, token, chance)]

    def _open(self, sequence: Sequence, cap: Cap) -> TextGuess | None:
        """Sync the drafter with the sequence's text. Return a guess, or None if drafting is not possible."""
        text = self._text_of(sequence)
        if text is None:
            return None
        in_step = self._sync(text, sequence)
        if in_step and text.length + self._units(text, cap) > self.context and not text.shared:
            text = self._lay_out(sequence, text) or text
            in_step = self._sync(text, sequence)
        units = self._units(text, cap)
        if not in_step or text.length + units > self.context:
            return None
        held = sequence.known[len(sequence.generated) :]
        budget = math.inf if text.shared else sequence.draft_bytes(cap)
        return TextGuess(
            sequence=sequence, cap=cap, most=units, budget=budget, held=held, as_ids=text.shared, text=text
        )

    def _sync(self, text: DrafterText, sequence: Sequence) -> bool:
        """Sync a text with its sequence, and truncate its slot. Return False if the text ends inside a character."""
        in_step = text.sync(self.model.tokenizer, sequence)
        text.cached = self.model.resume(text.slot, max(0, min(text.cached, text.length - 1)))
        return in_step

    def _text_of(self, sequence: Sequence) -> DrafterText | None:
        """Return a sequence's text in drafter tokens, or None if the drafter's vocabulary can't encode the text."""
        text = self._texts.get(sequence) or self._lay_out(sequence)
        if text is not None and text.shared and max(sequence.ids) >= self.model.spec.vocab_size:
            return None  # an id without text may be outside the drafter's embedding, even with a shared vocabulary
        return text

    def _units(self, text: DrafterText, cap: Cap) -> int:
        """Return how many drafter tokens a cap allows, at most as many as fit after the window has moved."""
        if text.shared:
            return cap.tokens
        return min(MAX_UNITS_A_TOKEN * cap.tokens, self.context // REFILL)

    def _lay_out(self, sequence: Sequence, old: DrafterText | None = None) -> DrafterText | None:
        """Encode a sequence's text and acquire a slot, replacing `old`. Return None if the text can't be encoded."""
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

    def _choose(self, guesses: list[TextGuess], logits: Logits) -> list[tuple[int, float]]:
        """Return each guess's next token, chosen with the target's noise, and its probability. May modify `logits`."""
        asked = [SampledRow(guess.sequence.request, guess.sequence.choice, guess.position()) for guess in guesses]
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

    def _draw(self, guess: TextGuess, row: Row, position: Position) -> int:
        """Sample a token with noise of its own, for a draft that is verified by rejection sampling."""
        request, sequence = guess.sequence.request, guess.sequence
        prepare(row, request, replace(position, allowed=self._spelled))
        guess.probabilities.append(probabilities(row, request))
        key = row_key(request.seed, sequence.choice, position.offset, position.silent, DRAFTING, len(sequence.ids))
        return draw(guess.probabilities[-1], uniform(key))

    def _extend(self, guess: TextGuess, token: int, confidence: float) -> bool:
        spelled = self.model.token_bytes[token]
        if spelled:
            guess.text.append(token, spelled)
        return guess.add(token, spelled, confidence)
