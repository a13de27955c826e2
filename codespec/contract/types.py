"""Public types: requests and their checks, completions, statistics, and events with their JSON form.

They do not depend on a model or a tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, NamedTuple

from codespec_grammars import Cursor

from codespec.contract.limits import MAX_CHOICES, MAX_LOGPROBS, MAX_PREDICTION
from codespec.errors import FIELD, Fault, RequestError

FinishReason = Literal["stop", "length", "deadline", "cancelled"]
Shape = Literal["raw", "auto", "line", "block"]
Mode = Literal["exact", "fast"]
Rule = Literal["match", "rejection"]
PREDICTION = "prediction"  # source name of drafts from the client's prediction


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of another file, placed before the prompt."""

    path: str
    text: str


class Owner(NamedTuple):
    """Owner of a text: the client's scope and the document ("": unspecified)."""

    scope: str = ""
    document: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """A completion request. Text is `str`, sizes are in target tokens, and times are in milliseconds.

    - `shape`: "raw" returns the target's tokens only, like Hugging Face `generate`; "line", "block" and "auto" end the
      text at the boundary that an editor would use.
    - `heal`: if the prompt ends inside a token, back up to the last stable boundary.
    - `language`: the editor's language id. If empty, it is derived from `path`.
    - `cursor`: syntax information about the cursor from a language server. If None, the text is lexed.
    - `prediction`: text that the completion will probably repeat, such as the old version of a file being rewritten or
      a template. It is used as a draft, so it affects only the speed of the completion.
    - `speculate`: None uses the engine's setting.
    - `n`: number of alternatives for the prompt.
    - `document`: the document being edited. Its successive prompts share a layout, so the text may depend on earlier
      prompts (see `text.layout`). `prefix` begins at character `prefix_offset` of the document.
    - `first_answer_ms`: the time after which the client shows what there is. It limits the prompt like the engine's
      setting, of which it can only be a part. None uses the setting.
    - `max_tokens`: 0 only prefills the prompt, so that the next similar request is fast.
    - `prompt_ids`: a prompt in target tokens, control tokens included (raw only). Drafters then read `prefix` instead.
    - `ends_at_control`: every control token ends a raw text, not only those that end the model's own generation.
    - `logprobs`: return the target's log-probability of each committed token, and of this many of the most likely
      tokens at its position. None disables them at no cost.
    - `rule`: how sampled drafts are verified. With "match" the seed alone determines the text. With "rejection" the
      text depends on the drafts but its distribution does not, and a drafter must share the target's vocabulary.
    - `scope`: the client. The engine reuses cached data only for requests with the same scope, because cached tokens,
      drafts and timings would reveal the text to other clients.
    """

    prefix: str
    suffix: str = ""
    path: str = ""
    language: str = ""
    snippets: tuple[Snippet, ...] = ()
    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    deadline_ms: float | None = None
    first_answer_ms: float | None = None
    prediction: str = ""
    speculate: bool | None = None
    shape: Shape = "raw"
    heal: bool = False
    document: str = ""
    prefix_offset: int = 0
    cursor: Cursor | None = None
    prompt_ids: tuple[int, ...] = ()
    ends_at_control: bool = False
    logprobs: int | None = None
    rule: Rule = "match"
    scope: str = ""

    @property
    def owner(self) -> Owner:
        """The owner of the text."""
        return Owner(self.scope, self.document)


@dataclass(slots=True)
class Counts:
    """Draft tokens of one proposer or context, in target tokens. Both counts exclude the bonus token."""

    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Stats:
    """Cost of one completion, or of a sum of them. Times are wall-clock milliseconds.

    `drafted` and `accepted` exclude the bonus token; `committed` includes it. `rounds` includes rounds without a draft.
    Every request in a batched step counts the full time of the step. `total_ms`, `first_piece_ms` and `queue_ms` (until
    the request gets a cache slot) start at the request's arrival. `cached_tokens` are prompt tokens that were already
    cached. The drafter's counts are in its own tokens, and 0 if it was not used.

    `decode_ms` is the time of the steps that generated this text and prefilled no prompt. `plain_ms` is the time that
    plain decoding would have taken for the same tokens according to the engine's cost table (0 without one), so
    `plain_ms / decode_ms` is the speedup over plain decoding.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    drafter_prompt_tokens: int = 0
    drafter_cached_tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    committed: int = 0
    rounds_full: int = 0
    rounds_partial: int = 0
    rounds_none: int = 0
    by_source: dict[str, Counts] = field(default_factory=dict)
    by_context: dict[str, Counts] = field(default_factory=dict)
    prefill_ms: float = 0.0
    context_ms: float = 0.0
    draft_ms: float = 0.0
    retokenize_ms: float = 0.0
    verify_ms: float = 0.0
    other_ms: float = 0.0
    decode_ms: float = 0.0
    plain_ms: float = 0.0
    queue_ms: float = 0.0
    admit_ms: float = 0.0  # part of `queue_ms`: check the request, find its syntax context, build the prompt
    first_piece_ms: float = 0.0
    total_ms: float = 0.0
    trimmed: bool = False  # whether the prompt did not fit and was cut
    ended: str = ""  # why a shape or a filter ended the text; "" if neither did
    notes: list[str] = field(default_factory=list)

    def count_round(self, source: str, drafted: int, accepted: int, context: str = "unknown") -> None:
        """Add one verified round.

        `source` is "" without a draft; `context` is the class at the end of the text.
        """
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        if not drafted:
            return
        for counts in (self.by_source.setdefault(source, Counts()), self.by_context.setdefault(context, Counts())):
            counts.drafted += drafted
            counts.accepted += accepted
        if accepted == drafted:
            self.rounds_full += 1
        elif accepted:
            self.rounds_partial += 1
        else:
            self.rounds_none += 1

    def add(self, other: Stats) -> None:
        """Add another request's numbers to this sum. Each distinct note is kept once."""
        for item in fields(self):
            value = getattr(other, item.name)
            if isinstance(value, (int, float)):
                setattr(self, item.name, getattr(self, item.name) + value)
        for sums, parts in ((self.by_source, other.by_source), (self.by_context, other.by_context)):
            for name, counts in parts.items():
                mine = sums.setdefault(name, Counts())
                mine.drafted += counts.drafted
                mine.accepted += counts.accepted
        self.notes.extend(note for note in other.notes if note not in self.notes)

    def as_dict(self) -> Mapping[str, Any]:
        """Return the statistics as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The target's log-probability of a committed token, before penalty, temperature and filters.

    `place` is the token's index in the completion. `top` holds the most likely (id, log-probability) pairs at this
    position, best first.
    """

    place: int
    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished completion. `token_ids` are the target's, starting with the first generated token.

    `alternatives` holds choices 1…n-1. `logprobs` has one entry per token id if requested.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats
    choice: int = 0
    alternatives: tuple[Completion, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class TextEvent:
    """A piece of final text, which later rounds do not change."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """One verify: the draft as text (`draft`), the accepted part, and the target's own token after it.

    `accepted_text` is the accepted part and `target_text` the correction or bonus. Lengths are in target tokens.
    `logprobs` covers the committed tokens, if requested. `context` is the syntax class at the end of the text before
    the round. `length` is the draft length before a policy trimmed it to `drafted`.
    """

    choice: int
    source: str
    drafted: int
    accepted: int
    draft: str
    accepted_text: str
    target_text: str
    reason: str
    logprobs: tuple[TokenLogprob, ...] = ()
    context: str = "unknown"
    length: int = 0


@dataclass(frozen=True, slots=True)
class DoneEvent:
    """The end of one choice."""

    choice: int
    completion: Completion


Event = TextEvent | RoundEvent | DoneEvent


MIN_PROMPT = 16  # tokens of the context that a completion leaves for its prompt


def check_request(request: CompletionRequest, context: int) -> None:
    """Raise RequestError for the first invalid field."""
    texts = (("prefix", request.prefix), ("suffix", request.suffix), ("prediction", request.prediction))
    for name, text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            what = f"{FIELD} contains a lone surrogate at character {error.start}"
            raise RequestError(Fault("invalid_text", what, "send valid text", name)) from error
    demand(len(request.prediction) <= MAX_PREDICTION, "prediction", f"at most {MAX_PREDICTION} characters long")
    room = context - MIN_PROMPT
    demand(0 <= request.max_tokens <= room, "max_tokens", f"between 0 and {room} for a context of {context}")
    demand(0.0 <= request.temperature <= 100.0, "temperature", "between 0 and 100")
    demand(request.top_k >= 0, "top_k", "0 (off) or more")
    demand(0.0 < request.top_p <= 1.0, "top_p", "above 0 and at most 1")
    demand(0.0 <= request.min_p <= 1.0, "min_p", "between 0 and 1")
    demand(0.01 <= request.repetition_penalty <= 100.0, "repetition_penalty", "between 0.01 and 100")
    demand(1 <= request.n <= MAX_CHOICES, "n", f"between 1 and {MAX_CHOICES}")
    demand(all(request.stop), "stop", "a list of non-empty texts")
    demand(request.shape in ("raw", "auto", "line", "block"), "shape", "raw, auto, line or block")
    demand(request.deadline_ms is None or request.deadline_ms > 0, "deadline_ms", "above 0")
    demand(request.logprobs is None or 0 <= request.logprobs <= MAX_LOGPROBS, "logprobs", f"0 to {MAX_LOGPROBS}")
    demand(request.rule in ("match", "rejection"), "rule", "match or rejection")
    demand(request.rule == "match" or not request.heal, "rule", "match if heal is set")
    plain = not (request.suffix or request.snippets or request.heal) and request.shape == "raw"
    demand(plain or not request.prompt_ids, "prompt_ids", "alone: shape raw, without suffix, snippets and heal")


def fills_in(request: CompletionRequest) -> bool:
    """Return whether a request is for text at a cursor: nothing after it is a suffix too, except for raw text."""
    return bool(request.suffix) or request.shape != "raw"


def demand(holds: bool, field: str, range_: str) -> None:
    """Raise RequestError for a field unless it `holds` its range."""
    if not holds:
        raise RequestError(Fault("invalid_field", f"{FIELD} must be {range_}", field=field))


ROUND = [item.name for item in fields(RoundEvent) if item.name != "logprobs"]  # only other endpoints report logprobs


def event_to_json(event: Event, notes: Sequence[str] = (), *, token_ids: bool = False) -> tuple[str, dict[str, Any]]:
    """Return an event's name and data. `notes` explain how the request was read; `token_ids` adds ids to `done`."""
    if isinstance(event, TextEvent):
        return "text", {"choice": event.choice, "text": event.text}
    if isinstance(event, RoundEvent):
        return "round", {name: getattr(event, name) for name in ROUND}
    completion, stats = event.completion, event.completion.stats
    done = {
        "choice": event.choice,
        "finish_reason": completion.finish_reason,
        "cached_tokens": stats.cached_tokens,
        "new_tokens": stats.prompt_tokens - stats.cached_tokens,
        "stats": {**stats.as_dict(), "notes": [*notes, *stats.notes]},
    }
    return "done", done | ({"token_ids": list(completion.token_ids)} if token_ids else {})


def event_from_json(name: str, data: Mapping[str, Any], text: str) -> Event | None:
    """Return an event, or None for an unknown name. `text` is the choice's whole text, which a `done` event omits."""
    if name == "text":
        return TextEvent(**data)
    if name == "round":
        return RoundEvent(**data)
    if name != "done":
        return None
    stats = dict(data["stats"])
    for table in ("by_source", "by_context"):
        stats[table] = {key: Counts(**counts) for key, counts in stats[table].items()}
    ids = tuple(data.get("token_ids", ()))
    return DoneEvent(data["choice"], Completion(text, ids, data["finish_reason"], Stats(**stats), data["choice"]))
