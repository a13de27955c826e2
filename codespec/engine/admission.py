"""From a request to sequences: checks it, builds the prompt, sets what ends it. Knows the target's tokenizer and
limits; knows no slots and no drafts.
"""

from __future__ import annotations

import math

from codespec_grammars import find_language, find_place

from codespec.errors import RequestError
from codespec.models.language_model import LanguageModel
from codespec.sequence import Sequence
from codespec.text.ending import Ending
from codespec.text.fim import FimMissing, build_prompt, find_template
from codespec.text.streaming import StopFinder, Utf8Stream
from codespec.types import CompletionRequest

MAX_CHOICES = 16
MIN_PROMPT = 16


class Admission:
    """The door of one engine; `context` is target tokens for prompt and completion together."""

    def __init__(self, target: LanguageModel, context: int) -> None:
        self.target = target
        self.context = context
        self.template = find_template(target.tokenizer)

    def admit(self, request: CompletionRequest) -> list[Sequence]:
        """One sequence a choice; the first one's prefill is shared. Raises RequestError naming the field at fault."""
        check_request(request, self.context)
        tokenizer = self.target.tokenizer
        template = None if isinstance(self.template, FimMissing) or not request.suffix else self.template
        prompt = build_prompt(
            tokenizer,
            template,
            prefix=request.prefix,
            suffix=request.suffix,
            path=request.path,
            snippets=[(s.path, s.text) for s in request.snippets],
            budget=self.context - request.max_tokens,
            heal=request.heal,
        )
        if not prompt.ids:
            raise RequestError("prefix is empty and the model has no begin-of-text token: give some text.", "prefix")
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
            sequence.stats.prompt_tokens = len(prompt.ids)
            sequence.stats.notes.extend(self._notes(request, prompt.trimmed, prompt.notes))
            if ending and ending.idle:
                sequence.stats.notes.append(f"nothing is suggested here: {ending.idle} (shape line or block does)")
            sequences.append(sequence)
        return sequences

    def _notes(self, request: CompletionRequest, trimmed: bool, notes: tuple[str, ...]) -> list[str]:
        said = list(notes)
        if trimmed:
            said.append(f"the prompt is longer than the context of {self.context} tokens and was trimmed")
        if request.suffix and isinstance(self.template, FimMissing):
            said.append(f"{self.template.reason}: the text after the cursor was not used")
        return said


def _endings(request: CompletionRequest) -> list[Ending | None]:
    """What ends each choice; nothing does where the target's tokens alone are wanted."""
    if request.shape == "raw":
        return [None] * request.n
    language = find_language(request.language, request.path)
    place = find_place(language, request.prefix.encode(), request.suffix.encode())
    return [Ending(request.shape, place, request.prefix, request.suffix) for _ in range(request.n)]


def check_request(request: CompletionRequest, context: int) -> None:
    """Raises RequestError for the first field that can't be served."""
    for name, text in (("prefix", request.prefix), ("suffix", request.suffix)):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(
                f"{name} holds a lone surrogate at character {error.start}: send valid text.", name
            ) from error
    room = context - MIN_PROMPT
    _demand(1 <= request.max_tokens <= room, "max_tokens", f"between 1 and {room} for a context of {context}")
    _demand(0.0 <= request.temperature <= 100.0, "temperature", "between 0 and 100")
    _demand(request.top_k >= 0, "top_k", "0 (off) or more")
    _demand(0.0 < request.top_p <= 1.0, "top_p", "above 0 and at most 1")
    _demand(0.0 <= request.min_p <= 1.0, "min_p", "between 0 and 1")
    _demand(0.0 < request.repetition_penalty < math.inf, "repetition_penalty", "above 0")
    _demand(1 <= request.n <= MAX_CHOICES, "n", f"between 1 and {MAX_CHOICES}")
    _demand(all(request.stop), "stop", "a list of texts that are not empty")
    _demand(request.shape in ("raw", "auto", "line", "block"), "shape", "raw, auto, line or block")
    _demand(request.deadline_ms is None or request.deadline_ms > 0, "deadline_ms", "above 0")


def _demand(holds: bool, field: str, range_: str) -> None:
    if not holds:
        raise RequestError(f"{field} must be {range_}.", field)
