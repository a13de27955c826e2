"""Turn a request into sequences: build the prompt and set the stop conditions."""

from __future__ import annotations

from dataclasses import replace

from codespec.api.types import MIN_PROMPT, CompletionRequest, check_length, demand, fills_in
from codespec.backends.language_model import LanguageModel
from codespec.errors import FIELD, Fault, RequestError
from codespec.sequence import Sequence
from codespec.startup.tuning import ReadingSpeed, prompt_budget
from codespec.text.ending import begin_endings
from codespec.text.filters import StopFinder
from codespec.text.fim import Layouts, TokenPrompt, build_prompt
from codespec.text.fim_templates import FimMissing, FimTemplate, find_template

COLDEST = 1e-5  # below this, decode greedily: logits are too coarse, and dividing them by it overflows
EMPTY = Fault("empty", f"{FIELD} is empty and the model has no begin-of-text token", "give some text", "prefix")
RESERVED = 128  # minimum of tokens that an editor prompt leaves free


class Admission:
    """Creates the sequences of one engine's requests."""

    def __init__(
        self, target: LanguageModel, context: int, budget: int = 0, reading: ReadingSpeed | None = None
    ) -> None:
        self.target = target
        self.context = context
        self.budget = budget or context  # of an editor prompt, because a new document is prefilled while the user waits
        self._reading = reading  # with which a request's `first_answer_ms` can lower the budget
        self.template = find_template(target.tokenizer)
        self._layouts = Layouts()

    def admit(self, request: CompletionRequest) -> list[Sequence]:
        """Return one sequence per choice; all choices share a prefill. Raises RequestError with the invalid field."""
        check_length(request, self.context)
        if request.temperature < COLDEST:
            request = replace(request, temperature=0.0)
        tokenizer = self.target.tokenizer
        template = None if isinstance(self.template, FimMissing) or not fills_in(request) else self.template
        prompt = self._ready_made(request) if request.prompt_ids else self._build(request, template)
        if not prompt.ids:
            raise RequestError(EMPTY)
        generates = request.shape == "raw" and template is None and not request.ends_at_control
        sequences: list[Sequence] = []
        for choice, ending in enumerate(begin_endings(request)):
            sequence = Sequence(
                request=request,
                choice=choice,
                prompt_ids=list(prompt.ids),
                context=prompt.context,
                held=prompt.held,
                continues=prompt.continues,
                eos_ids=tokenizer.model_eos_ids if generates else tokenizer.eos_ids,
                stops=StopFinder(tuple(stop.encode() for stop in request.stop)),
                ending=ending,
                parent=sequences[0] if sequences else None,
            )
            sequence.stats.prompt_tokens, sequence.stats.trimmed = len(prompt.ids), prompt.trimmed
            sequence.stats.notes.extend(self._notes(request, prompt))
            if ending and ending.idle:
                sequence.stats.notes.append(f"nothing is suggested here: {ending.idle} (shapes line and block would)")
            sequences.append(sequence)
        return sequences

    def _build(self, request: CompletionRequest, template: FimTemplate | None) -> TokenPrompt:
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
            append=True,
        )

    def _room(self, request: CompletionRequest) -> int:
        room = self.context - reserve(request, self.context)
        if request.shape == "raw":
            return room
        given = request.first_answer_ms
        if given is not None and self._reading is not None:
            room = min(room, prompt_budget(self._reading, given, self.context))
        return min(room, self.budget)

    def _ready_made(self, request: CompletionRequest) -> TokenPrompt:
        """Return a prompt that was given as token ids, without trimming, which would change the prompt's meaning."""
        ids, room, known = request.prompt_ids, self.context - request.max_tokens, len(self.target.token_bytes)
        demand(all(0 <= token < known for token in ids), "prompt_ids", f"ids between 0 and {known - 1}")
        demand(len(ids) <= room, "prompt_ids", f"at most {room} tokens long with this max_tokens, and has {len(ids)}")
        context = self.target.tokenizer.decode_bytes(ids)
        return TokenPrompt(list(ids), context, held=b"", continues=True, prefix_start=0, trimmed=False)

    def _notes(self, request: CompletionRequest, prompt: TokenPrompt) -> list[str]:
        messages = list(prompt.notes)
        if prompt.trimmed:
            room = self._room(request)
            is_late = room < self.context - reserve(request, self.context)
            most = f"{room} tokens that first_answer_ms allows" if is_late else f"context of {self.context} tokens"
            messages.append(f"the prompt is longer than the {most} and was trimmed: only text near the cursor is used")
        if request.suffix and isinstance(self.template, FimMissing):
            messages.append(f"{self.template.reason}: the text after the cursor was not used")
        return messages


def reserve(request: CompletionRequest, context: int) -> int:
    """Return the number of tokens reserved for a completion, which is rounded up for editors to keep prompts stable."""
    if request.shape == "raw":
        return request.max_tokens
    size = min(RESERVED, context // 4)
    while size < request.max_tokens:
        size *= 2
    return min(size, context - MIN_PROMPT)
