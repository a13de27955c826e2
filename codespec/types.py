"""The values that cross the house's doors: requests in, completions and events out. Knows no model and no tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, NamedTuple

from codespec_grammars import Cursor

FinishReason = Literal["stop", "length", "deadline", "cancelled"]
Shape = Literal["raw", "auto", "line", "block"]
Mode = Literal["exact", "fast"]
Rule = Literal["match", "rejection"]
PREDICTION = "prediction"  # the source of drafts that are a client's own guess
MOST_PREDICTION = 1 << 18  # characters of it
MOST_SIDE = 64 * 1024  # characters that the daemon takes on each side of a cursor; editors send so many bytes at most


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of another file, put before the prompt."""

    path: str
    text: str


class Owner(NamedTuple):
    """Whose text it is: who asks, and for which document ("": they do not say)."""

    scope: str = ""
    document: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """What to complete and how. Text is `str`; sizes are target tokens; times are milliseconds.

    `shape="raw"` gives the target's tokens only (what Hugging Face `generate` gives); `line`/`block`/`auto` cut it
    where an editor would. `heal` backs a prompt that ends inside a token up to the last stable boundary.
    `language` is an editor's language id; without it the path says the language.
    `cursor` is what an editor's language server knows of the syntax at the cursor; without it the text alone says that.
    `prediction` is text that the answer will probably repeat (the old state of a file that is rewritten, a template): a
    draft like any other, so it changes when tokens come and never which.
    `speculate=None` takes the engine's setting. `n` asks for that many alternatives of one prompt.
    `document` names what is edited: its prompts stay alike from one to the next, so the text may depend on those before
    (see `text.layout`); `prefix` begins at its character `prefix_offset`. `max_tokens=0` only reads the prompt, so that
    the next one like it is quick.
    `prompt_ids` is a prompt already in the target's tokens, control tokens included (raw only); `prefix` is then only
    what drafters read of it. `logprobs` asks for the target's log-probability of each committed token and of that many
    of the likeliest beside it; None asks for none, and costs nothing.
    `rule` says how a sampled draft is judged. Under "match" the seed alone decides the text. Under "rejection" the text
    depends on what was drafted, its distribution does not; a drafter must share the target's vocabulary.
    `scope` says who asks. What the engine keeps of a text serves requests of the same scope only, because cached
    tokens, drafts and times would tell another client what the text was.
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
    prediction: str = ""
    speculate: bool | None = None
    shape: Shape = "raw"
    heal: bool = False
    document: str = ""
    prefix_offset: int = 0
    cursor: Cursor | None = None
    prompt_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    rule: Rule = "match"
    scope: str = ""

    @property
    def owner(self) -> Owner:
        """Whose text it is."""
        return Owner(self.scope, self.document)


@dataclass(slots=True)
class Counts:
    """Draft tokens of one proposer in one context, in target tokens; the bonus token is in neither number."""

    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Stats:
    """What one completion (or a sum of them) cost. Drafted and accepted exclude the bonus
    token, committed includes it, rounds include those without a draft. Times are milliseconds of wall clock; a
    batched step's time is counted in full for each request in it. `total_ms`, `first_piece_ms` and `queue_ms` (up to
    its slot in the cache) begin when the request arrived. Cached tokens are those of a prompt that were computed
    before; the drafter's are its own, and 0 where it was not asked.

    `decode_ms` are the steps in which it was written and nobody's prompt was read; `plain_ms` is what plain decoding
    would have taken for the same tokens by the engine's cost table (0 where there is none), so `plain_ms / decode_ms`
    says how many times as fast as plain it was.
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
    admit_ms: float = 0.0  # of `queue_ms`: checking the request, its place in the syntax, building the prompt
    first_piece_ms: float = 0.0
    total_ms: float = 0.0
    ended: str = ""  # why the text ends where it does, where a shape or a filter ended it
    notes: list[str] = field(default_factory=list)

    def count_round(self, source: str, drafted: int, accepted: int, context: str = "unknown") -> None:
        """Adds one verified round; `source` is "" where nothing was drafted, `context` the class at the text's tip."""
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
        """Adds another request's numbers to this sum; notes are kept once each."""
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
        """The same as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The target's own log-probability (before penalty, temperature and filters) of the committed token `id`, the
    `place`-th of its completion; `top` are the likeliest (id, log-probability) there, the best first.
    """

    place: int
    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished text. `token_ids` are the target's, from the first one generated; `alternatives` holds choices
    1…n-1; `logprobs` one for each of `token_ids`, where the request asked for them.
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
    """A piece of text that no later round takes back."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """One verify: what was drafted (`draft`, text), how much of it the target agreed with, what it wrote after.

    `accepted_text` is the agreed part, `target_text` the correction or bonus; lengths are target tokens. `logprobs` are
    the committed tokens', where the request asked for them. `context` is the class of syntax at the tip, before the
    round; `length` is how much was guessed, before a policy trimmed it to `drafted`.
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
