"""A small language model that guesses, with its own tokens, its own cache and its own (perhaps shorter) context.

Only bytes come in and go out. After each commit the drafter is cut back to the longest common byte prefix of what it
guessed and what was written, and only the rest is encoded anew. Where both models share a vocabulary, ids pass straight
through. Knows nothing of how the target checks.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from codespec.errors import RequestError, TokenizerError
from codespec.models.language_model import LanguageModel
from codespec.models.rows import Rows
from codespec.models.slots import CacheUse, SlotPool
from codespec.proposers.base import NOTHING, Proposer, budget_bytes
from codespec.proposers.drafter_text import REFILL, DrafterText, open_text
from codespec.sequence import Cap, Draft, Sequence
from codespec.text.fim import FimMissing, find_template
from codespec.text.layout import Layouts
from codespec.text.tokenizer import TextTokenizer
from codespec.types import CompletionRequest, Owner
from codespec.verify.device_sampling import DeviceSampler, SampledRow
from codespec.verify.noise import row_key, uniform
from codespec.verify.sampling import Position, Row, Sampler, draw, prepare, probabilities

DRAFTING = 3  # what noise is for (verify.acceptance)
MAX_UNITS_A_TOKEN = 3  # a drafter token may spell less than a target token
ANY_BYTES = 1 << 30
MOST_MORE = 1.3  # times as many tokens for the same text
SAMPLE = """def read_lines(path, encoding="utf-8"):
    with open(path, encoding=encoding) as file:
        for number, line in enumerate(file):
            if line.strip() and not line.startswith("#"):
                yield number, line.rstrip("\\n")


class Counter:
    def __init__(self, values=None):
        self.values = dict(values or {})
"""


def has_tokens_of(target: TextTokenizer, drafter: TextTokenizer) -> bool:
    """Whether a drafter's tokens are nearly the target's, as of a tokenizer that was cut from it: all of them are the
    target's too, and code takes hardly more of them. Their number then says when a draft is long enough.
    """
    if not set(drafter.token_bytes) <= set(target.token_bytes):
        return False
    return len(drafter.encode(SAMPLE)) <= MOST_MORE * len(target.encode(SAMPLE))


@dataclass(slots=True, eq=False)
class Guess:
    """One draft in the making; `held` bytes are certain and stand before it."""

    place: int  # index in the batch that asked
    sequence: Sequence
    text: DrafterText
    cap: Cap
    units: int  # drafter tokens at most
    budget: int  # bytes
    held: bytes
    drafted: bytearray = field(default_factory=bytearray)
    ids: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    probabilities: list[Row] = field(default_factory=list)

    @property
    def drawn(self) -> bool:
        """Whether its tokens are drawn by chance, and the target is shown the probabilities."""
        request = self.sequence.request
        return self.text.shared and request.rule == "rejection" and request.temperature > 0.0

    def rows(self) -> Rows:
        """What the drafter has not seen yet."""
        pending = self.text.pending
        return Rows(self.text.slot, self.text.cached, pending)

    def draft(self, source: str) -> Draft:
        """The finished draft."""
        if not self.ids:
            return NOTHING
        ids = tuple(self.ids) if self.text.shared else None
        text, probabilities = self.held + bytes(self.drafted), tuple(self.probabilities)
        return Draft(text, source, tuple(self.ends), tuple(self.confidences), ids, probabilities)


class DraftModel(Proposer):
    """Any causal language model as a proposer, batched over sequences; `context` is in its own tokens, and so is
    `chunk`, what it reads at a time where others would have to wait.
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
        self.aligned = target is not None and has_tokens_of(target, model.tokenizer)
        self._sampler = Sampler(model.token_bytes)
        on_device = model.steps == "device"
        self._device_sampler = DeviceSampler(model.token_bytes, model.device) if on_device else None
        self._spelled = [number for number, spelled in enumerate(model.token_bytes) if spelled]
        self.slots = SlotPool(slots)
        self._layouts = Layouts()
        self._texts: dict[Sequence, DrafterText] = {}

    @property
    def models(self) -> Mapping[str, LanguageModel]:
        """The drafter."""
        return {self.name: self.model}

    @property
    def caches(self) -> Mapping[str, CacheUse]:
        """The drafter's."""
        return {"drafter": CacheUse.of(self.slots, self.model.cache)}

    def check(self, request: CompletionRequest, length: int) -> None:
        """Under rejection the target must see the probabilities of what is drawn: RequestError where the drafter can't
        show them.
        """
        if request.rule != "rejection":
            return
        if not self.shared:
            raise RequestError("rule must be match: this drafter has a vocabulary of its own.", "rule")
        if length > self.context:
            raise RequestError(
                f"rule must be match, or the text shorter: with the prompt {length} tokens, and the drafter reads "
                f"{self.context}.",
                "rule",
            )

    def warm_for(self, owner: Owner) -> tuple[str, ...]:
        """Itself, where a slot still holds what it read for the owner."""
        return (self.name,) if self.slots.holds(owner) else ()

    @torch.inference_mode()
    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Drafts for all sequences with a cap, one token of each a forward."""
        drafts = [NOTHING] * len(sequences)
        guesses = [self._open(i, s, cap) for i, (s, cap) in enumerate(zip(sequences, caps, strict=True)) if cap.tokens]
        going = started = self._ready([guess for guess in guesses if guess is not None], alone=len(sequences) == 1)
        while going:
            logits = self.model.forward([guess.rows() for guess in going])
            for guess in going:
                guess.text.cached = guess.text.length
            probabilities = logits.softmax(dim=1)  # before the sampler changes them
            tokens = self._choose(going, logits)
            both = torch.stack([tokens.double(), probabilities.gather(1, tokens[:, None])[:, 0].double()]).tolist()
            going = [g for g, token, p in zip(going, *both, strict=True) if self._extend(g, int(token), p)]
        for guess in started:
            drafts[guess.place] = guess.draft(self.name)
        return drafts

    def _ready(self, guesses: list[Guess], *, alone: bool) -> list[Guess]:
        """The guesses that can be drafted now. Who has much to read does that first, a chunk a round where others
        would have to wait.
        """
        late = [] if alone else [guess for guess in guesses if len(guess.text.pending) > self.chunk]
        self._catch_up([guess.text for guess in late])
        return [guess for guess in guesses if guess not in late]

    @torch.inference_mode()
    def read(self, sequence: Sequence) -> bool:
        """Computes a chunk of what it has not seen, but for the last token, whose row only a draft needs."""
        text = self._text_of(sequence)
        if text is None or not text.sync(self.model.tokenizer, sequence):
            return False
        return self._catch_up([text])

    def _catch_up(self, texts: collections.abc.Sequence[DrafterText]) -> bool:
        """Reads a chunk of each text that has more than one token to read; whether one still has."""
        behind = [(text, text.pending[:-1][: self.chunk]) for text in texts if len(text.pending) > 1]
        if behind:
            self.model.forward([Rows(text.slot, text.cached, ids, keep=0) for text, ids in behind])
        for text, ids in behind:
            text.cached += len(ids)
        return any(len(text.pending) > 1 for text in texts)

    def pause(self, sequence: Sequence) -> None:
        """Frees its slot, as at its end."""
        self.release(sequence)

    def release(self, sequence: Sequence) -> None:
        """Frees the drafter's slot; what it holds may serve the next prompt that begins alike."""
        text = self._texts.pop(sequence, None)
        if text is not None:
            held = [*text.head, *text.ids][: text.cached]
            self.slots.release(text.slot, held, self.model.rotary_key(self.context))

    def _open(self, place: int, sequence: Sequence, cap: Cap) -> Guess | None:
        """Brings the drafter up to the sequence's text; None where it can't guess from there."""
        text = self._text_of(sequence)
        if text is None:
            return None
        in_step = text.sync(self.model.tokenizer, sequence)
        if in_step and text.length + self._units(text, cap) > self.context and not text.shared:
            text = self._read(sequence, text) or text
            in_step = text.sync(self.model.tokenizer, sequence)
        units = self._units(text, cap)
        if not in_step or text.length + units > self.context:
            return None
        held = sequence.known[len(sequence.generated) :]
        budget = ANY_BYTES if self.aligned else budget_bytes(sequence, cap)
        return Guess(place, sequence, text, cap, units, budget, held)

    def _text_of(self, sequence: Sequence) -> DrafterText | None:
        """What the drafter has of a sequence; None where it can't read it."""
        text = self._texts.get(sequence) or self._read(sequence)
        if text is not None and text.shared and max(sequence.ids) >= self.model.spec.vocab_size:
            return None  # a target may have more rows, without text, than a drafter that shares its vocabulary
        return text

    def _units(self, text: DrafterText, cap: Cap) -> int:
        """Drafter tokens that a cap may take: no more than a moved window leaves free."""
        if text.shared:
            return cap.tokens
        return min(cap.tokens if self.aligned else MAX_UNITS_A_TOKEN * cap.tokens, self.context // REFILL)

    def _read(self, sequence: Sequence, old: DrafterText | None = None) -> DrafterText | None:
        """Lays the text out anew, in the slot that already holds the longest beginning of it; None where the drafter's
        vocabulary can't spell it.
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
        text.slot, text.cached = lease.slot, min(lease.shared, max(0, text.length - 1))
        if lease.source != lease.slot and text.cached:
            self.model.fork(lease.source, lease.slot, text.cached)
        self.model.admit(text.slot, self.context, text.cached)
        sequence.stats.drafter_prompt_tokens += text.length
        sequence.stats.drafter_cached_tokens += text.cached
        self._texts[sequence] = text
        return text

    def _choose(self, guesses: list[Guess], logits: Tensor) -> Tensor:
        """The drafter's next token for each guess: its best, or under sampling what the target's noise favours. Ids
        [guesses] where the logits are, which may be changed.
        """
        requests = [guess.sequence.request for guess in guesses]
        if all(request.temperature == 0.0 and request.repetition_penalty == 1.0 for request in requests):
            return logits.argmax(dim=1)
        asked = [SampledRow(guess.sequence.request, guess.sequence.choice, self._position(guess)) for guess in guesses]
        if self._device_sampler is not None and not any(guess.drawn for guess in guesses):
            return self._device_sampler.choose(logits, asked)
        chosen = []
        for guess, one, row in zip(guesses, asked, logits, strict=True):
            if guess.drawn:
                chosen.append(self._draw(guess, row, one.position))
            else:
                chosen += self._sampler.choose(row[None].clone(), one.request, one.choice, [one.position])
        return torch.tensor(chosen, device=logits.device)

    def _position(self, guess: Guess) -> Position:
        sequence, penalized = guess.sequence, guess.sequence.request.repetition_penalty != 1.0
        offset = len(sequence.generated) + len(guess.held) + len(guess.drafted)
        silent = sequence.silent if offset == len(sequence.generated) else 0
        return Position(offset, silent, guess.text.ids if penalized else ())

    def _draw(self, guess: Guess, logits: Tensor, position: Position) -> int:
        """A token by chance, for a draft that is judged by rejection; none of the target's noise goes in."""
        request, sequence = guess.sequence.request, guess.sequence
        row = logits.cpu().numpy().copy()
        prepare(row, request, replace(position, allowed=self._spelled))
        guess.probabilities.append(probabilities(row, request))
        key = row_key(request.seed, sequence.choice, position.offset, position.silent, DRAFTING, len(sequence.ids))
        return draw(guess.probabilities[-1], uniform(key))

    def _extend(self, guess: Guess, token: int, confidence: float) -> bool:
        """Adds one drafter token to a guess; says whether it goes on."""
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
        return guess.cap.goes_on(guess.confidences)  # an unsure unit is drafted too: a rejected tail costs one row
