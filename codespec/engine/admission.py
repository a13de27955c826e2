"""Turn a request into sequences: validate it, build the prompt and set its stop conditions."""

from __future__ import annotations

from dataclasses import replace

from codespec_grammars import find_language, read_surroundings

from codespec.contract.limits import MOST_CHOICES, MOST_LOGPROBS, MOST_PREDICTION
from codespec.contract.types import CompletionRequest
from codespec.errors import FIELD, Fault, RequestError
from codespec.models.language_model import LanguageModel
from codespec.sequence import Sequence
from codespec.text.ending import Ending
from codespec.text.fim import FimMissing, FimTemplate, Prompt, build_prompt, find_template
from codespec.text.layout import Layouts
from codespec.text.streaming import StopFinder, Utf8Stream

MIN_PROMPT = 16
AUDIT = "\0audit"  # document name for audits, so that they take no other document's slot
COLDEST = 1e-5  # below this, decode greedily: logits are too coarse, and dividing them by it overflows
EMPTY = Fault("empty", f"{FIELD} is empty and the model has no begin-of-text token", "give some text", "prefix")
RESERVED = 128  # minimum of tokens that an editor prompt leaves free


class Admission:
    """Admit the requests of one engine.

    `context` is the limit in target tokens for prompt and completion together. `budget` limits an editor prompt (0: all
    that the completion leaves), because a new document is prefilled while the user waits. The budget is the same for
    all prompts of a document, since a change would move its windows. Raw prompts are not limited by it.
    """

    def __init__(self, target: LanguageModel, context: int, budget: int = 0) -> None:
        self.target = target
        self.context = context
        self.budget = budget or context
        self.template = find_template(target.tokenizer)
        self._layouts = Layouts()

    def admit(self, request: CompletionRequest) -> list[Sequence]:
        """Return one sequence per choice; they share the first one's prefill.

        Raises RequestError with the name of the invalid field.
        """
        check_request(request, self.context)
        if request.temperature < COLDEST:
            request = replace(request, temperature=0.0)
        tokenizer = self.target.tokenizer
        template = None if isinstance(self.template, FimMissing) or not request.suffix else self.template
        prompt = self._ready_made(request) if request.prompt_ids else self._build(request, template)
        if not prompt.ids:
            raise RequestError(EMPTY)
        raw = request.shape == "raw" and template is None
        sequences: list[Sequence] = []
        for choice, ending in enumerate(_endings(request)):
            sequence = Sequence(
                request=request,
                choice=choice,
                prompt_ids=list(prompt.ids),
                context=prompt.context,
                held=prompt.held,
                continues=prompt.continues,
                eos_ids=tokenizer.model_eos_ids if raw else tokenizer.eos_ids,
                stops=StopFinder(tuple(stop.encode() for stop in request.stop)),
                ending=ending,
                parent=sequences[0] if sequences else None,
                stream=Utf8Stream(),
            )
            sequence.stats.prompt_tokens, sequence.stats.trimmed = len(prompt.ids), prompt.trimmed
            sequence.stats.notes.extend(self._notes(request, prompt.trimmed, prompt.notes))
            if ending and ending.idle:
                sequence.stats.notes.append(f"nothing is suggested here: {ending.idle} (shapes line and block would)")
            sequences.append(sequence)
        return sequences

    def repeat(self, finished: list[Sequence]) -> list[Sequence]:
        """Return the choices of a finished request as new sequences, to be decoded plainly and compared.

        They use the same prompt ids, because the document's layout would not produce them twice.
        """
        request = replace(finished[0].request, speculate=False, document=AUDIT)
        again: list[Sequence] = []
        for one, ending in zip(finished, _endings(request), strict=True):
            sequence = Sequence(
                request=request,
                choice=one.choice,
                prompt_ids=one.prompt_ids,
                context=one.context,
                held=one.held,
                continues=one.continues,
                eos_ids=one.eos_ids,
                stops=one.stops,
                ending=ending,
                audit=True,
                parent=again[0] if again else None,
            )
            sequence.stats.prompt_tokens = len(one.prompt_ids)
            again.append(sequence)
        return again

    def _build(self, request: CompletionRequest, template: FimTemplate | None) -> Prompt:
        return build_prompt(
            self.target.tokenizer,
            template,
            prefix=request.prefix,
            suffix=request.suffix,
            path=request.path,
            snippets=[(s.path, s.text) for s in request.snippets],
            budget=self._room(request),
            heal=request.heal,
            layout=self._layouts.of(request.owner),
            offset=request.prefix_offset,
            renew=request.max_tokens == 0,
        )

    def _room(self, request: CompletionRequest) -> int:
        room = self.context - reserve(request, self.context)
        return room if request.shape == "raw" else min(room, self.budget)

    def _ready_made(self, request: CompletionRequest) -> Prompt:
        """Return a prompt given as ids, unchanged: trimming it would change its meaning."""
        ids, room, known = request.prompt_ids, self.context - request.max_tokens, len(self.target.token_bytes)
        _demand(all(0 <= token < known for token in ids), "prompt_ids", f"ids between 0 and {known - 1}")
        _demand(len(ids) <= room, "prompt_ids", f"at most {room} tokens long with this max_tokens, and has {len(ids)}")
        context = self.target.tokenizer.decode_bytes(ids)
        return Prompt(list(ids), context, held=b"", continues=True, prefix_start=0, trimmed=False)

    def _notes(self, request: CompletionRequest, trimmed: bool, notes: tuple[str, ...]) -> list[str]:
        said = list(notes)
        if trimmed:
            cut = self._room(request) < self.context - reserve(request, self.context)
            most = f"{self.budget} tokens that first_answer_ms allows" if cut else f"context of {self.context} tokens"
            said.append(f"the prompt is longer than the {most} and was trimmed: only text near the cursor is used")
        if request.suffix and isinstance(self.template, FimMissing):
            said.append(f"{self.template.reason}: the text after the cursor was not used")
        return said


def _endings(request: CompletionRequest) -> list[Ending | None]:
    """Return the ending of each choice, or None for raw requests and warm-ups."""
    if request.shape == "raw" or request.max_tokens == 0:
        return [None] * request.n
    language = find_language(request.language, request.path)
    around = read_surroundings(language, request.prefix.encode(), request.suffix.encode(), sent=request.cursor)
    return [Ending(request.shape, around, request.prefix, request.suffix) for _ in range(request.n)]


def reserve(request: CompletionRequest, context: int) -> int:
    """Return the tokens reserved for the completion.

    Editor requests use a few fixed sizes, so that a warm-up, a short and a long completion at one position have the
    same prompt.
    """
    if request.shape == "raw":
        return request.max_tokens
    size = min(RESERVED, context // 4)
    while size < request.max_tokens:
        size *= 2
    return min(size, context - MIN_PROMPT)


def check_request(request: CompletionRequest, context: int) -> None:
    """Raise RequestError for the first invalid field."""
    texts = (("prefix", request.prefix), ("suffix", request.suffix), ("prediction", request.prediction))
    for name, text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            what = f"{FIELD} holds a lone surrogate at character {error.start}"
            raise RequestError(Fault("invalid_text", what, "send valid text", name)) from error
    _demand(len(request.prediction) <= MOST_PREDICTION, "prediction", f"at most {MOST_PREDICTION} characters long")
    room = context - MIN_PROMPT
    _demand(0 <= request.max_tokens <= room, "max_tokens", f"between 0 and {room} for a context of {context}")
    _demand(0.0 <= request.temperature <= 100.0, "temperature", "between 0 and 100")
    _demand(request.top_k >= 0, "top_k", "0 (off) or more")
    _demand(0.0 < request.top_p <= 1.0, "top_p", "above 0 and at most 1")
    _demand(0.0 <= request.min_p <= 1.0, "min_p", "between 0 and 1")
    _demand(0.01 <= request.repetition_penalty <= 100.0, "repetition_penalty", "between 0.01 and 100")
    _demand(1 <= request.n <= MOST_CHOICES, "n", f"between 1 and {MOST_CHOICES}")
    _demand(all(request.stop), "stop", "a list of non-empty texts")
    _demand(request.shape in ("raw", "auto", "line", "block"), "shape", "raw, auto, line or block")
    _demand(request.deadline_ms is None or request.deadline_ms > 0, "deadline_ms", "above 0")
    _demand(request.logprobs is None or 0 <= request.logprobs <= MOST_LOGPROBS, "logprobs", f"0 to {MOST_LOGPROBS}")
    _demand(request.rule in ("match", "rejection"), "rule", "match or rejection")
    _demand(request.rule == "match" or not request.heal, "rule", "match if heal is set")
    plain = not (request.suffix or request.snippets or request.heal) and request.shape == "raw"
    _demand(plain or not request.prompt_ids, "prompt_ids", "alone: shape raw, without suffix, snippets and heal")


def _demand(holds: bool, field: str, range_: str) -> None:
    if not holds:
        raise RequestError(Fault("invalid_field", f"{FIELD} must be {range_}", field=field))
