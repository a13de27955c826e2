"""What OpenAI's replies are made of: the frame, choices, usage, and the chunks of a streamed one.

Knows the shapes that its legacy endpoint, the chat and Mistral's share; each brings its own form of a choice.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from codespec.server.dialects.spelled import Placed, Shown, Spelling
from codespec.server.dialects.streams import read_choices, read_seed, read_top_k, told
from codespec.server.loading import Loaded
from codespec.server.tickets import Ask
from codespec.server.wire import Fields, sse
from codespec.types import Completion, DoneEvent, Event, RoundEvent, TextEvent, TokenLogprob

FINISH = {"stop": "stop", "length": "length", "deadline": "length", "cancelled": "stop"}
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Form:
    """One endpoint's way to write a choice, from its number, its text, why it ended (None: it goes on) and its
    log-probabilities (None: not asked for).

    `whole` is for a whole reply, `piece` for a chunk, `logprobs` makes what both are given; `opening` is the chunk that
    begins each choice.
    """

    whole: Callable[[int, str, str | None, Any], dict[str, Any]]
    piece: Callable[[int, str, str | None, Any], dict[str, Any]]
    logprobs: Callable[[Spelling, Sequence[Placed]], Any] = lambda spelling, placed: None
    opening: Callable[[int], dict[str, Any] | None] = lambda choice: None


def new_frame(prefix: str, kind: str, loaded: Loaded) -> dict[str, Any]:
    """What every object of one reply begins with."""
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": loaded.name,
        "system_fingerprint": "codespec",
    }


def read_sampling(fields: Fields) -> dict[str, Any]:
    """How to choose tokens and where to stop. Raises RequestError for what can't be served."""
    for name in ("frequency_penalty", "presence_penalty"):
        fields.refuse_unless(name, (0,), "repetition_penalty is what the engine has")
    fields.refuse_unless("logit_bias", ({},), "tokens are the engine's own")
    return {
        "temperature": fields.number("temperature", 0.0, 0.0, 2.0),
        "top_k": read_top_k(fields),
        "top_p": max(1e-6, fields.number("top_p", 1.0, 0.0, 1.0)),
        "min_p": fields.number("min_p", 0.0, 0.0, 1.0),
        "repetition_penalty": fields.number("repetition_penalty", 1.0, 0.01, 100.0),
        "seed": read_seed(fields),
        "n": read_choices(fields),
        "stop": fields.texts("stop"),
    }


def usage(done: Sequence[Completion], choices: int) -> dict[str, Any]:
    """Tokens of the prompts, each counted once whatever its `choices`, and of all choices."""
    prompts = [completion.stats for completion in done[::choices]]
    prompt, written = sum(s.prompt_tokens for s in prompts), sum(completion.stats.committed for completion in done)
    cached = {"cached_tokens": sum(s.cached_tokens for s in prompts)}
    counts = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
    return {**counts, "prompt_tokens_details": cached}


def whole(
    frame: dict[str, Any], form: Form, spelling: Spelling | None, asks: Sequence[Ask], done: Sequence[Completion]
) -> dict[str, Any]:
    """A reply in one piece; usage is added by whoever knows what was computed for it."""
    choices = []
    for number, completion in enumerate(done):
        placed = None
        if spelling is not None:
            shown = Shown(spelling)
            shown.add(completion.logprobs)
            placed = form.logprobs(spelling, shown.hand_out(len(completion.text)))
        choices.append(form.whole(number, completion.text, FINISH[completion.finish_reason], placed))
    return {**frame, "choices": choices, **told(asks, done)}


@dataclass(slots=True)
class Chunks:
    """The pieces of a streamed reply. The last one holds the usage, if it was asked for."""

    frame: dict[str, Any]
    form: Form
    asks: Sequence[Ask]
    spelling: Spelling | None = None
    with_usage: bool = False
    opened: bool = False
    lengths: dict[int, int] = field(default_factory=dict)  # characters told, by choice
    shown: dict[int, Shown] = field(default_factory=dict)
    done: dict[int, Completion] = field(default_factory=dict)

    def say(self, event: Event) -> list[bytes]:
        """What an event becomes."""
        pieces = [] if self.opened else self._open()
        choice = event.choice
        if isinstance(event, TextEvent):
            self.lengths[choice] = self.lengths.get(choice, 0) + len(event.text)
            pieces.append(self._chunk(self.form.piece(choice, event.text, None, self._logprobs(choice))))
        elif isinstance(event, RoundEvent):
            self._learn(choice, event.logprobs)
        else:
            pieces += self._end(event)
        return pieces

    @property
    def _choices(self) -> int:
        return sum(ask.request.n for ask in self.asks)

    def _open(self) -> list[bytes]:
        self.opened = True
        opening = [self.form.opening(choice) for choice in range(self._choices)]
        return [self._chunk(choice) for choice in opening if choice is not None]

    def _end(self, event: DoneEvent) -> list[bytes]:
        choice, completion = event.choice, event.completion
        self.done[choice] = completion
        self._learn(choice, completion.logprobs)
        last = self.form.piece(choice, "", FINISH[completion.finish_reason], self._logprobs(choice))
        pieces = [self._chunk(last, **told(self.asks, [completion]))]
        if self.with_usage and len(self.done) == self._choices:
            done = [self.done[number] for number in sorted(self.done)]
            pieces.append(sse({**self.frame, "choices": [], "usage": usage(done, self.asks[0].request.n)}))
        return pieces

    def _learn(self, choice: int, logprobs: Sequence[TokenLogprob]) -> None:
        if self.spelling is not None:
            self.shown.setdefault(choice, Shown(self.spelling)).add(logprobs)

    def _logprobs(self, choice: int) -> Any:
        """Of the tokens that begin in the text told so far, if they were not told yet."""
        if self.spelling is None or choice not in self.shown:
            return None
        placed = self.shown[choice].hand_out(self.lengths.get(choice, 0))
        return self.form.logprobs(self.spelling, placed) if placed else None

    def _chunk(self, choice: dict[str, Any], **more: Any) -> bytes:
        return sse({**self.frame, "choices": [choice], **more})
