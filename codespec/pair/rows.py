"""The rows of the pair report.

They state the models' sizes, context, architecture and vocabulary size, the properties of the tokenizers, the overlap
of the vocabularies, and the retokenization loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from codespec.errors import Fault
from codespec.pair.facts import ModelFacts
from codespec.pair.retokenization import PerfectDrafts, TokenizedText
from codespec.text.fim_templates import FimMissing, FimTemplate
from codespec.text.tokenizer import TextTokenizer

NEAR_IN_SIZE = 4.0  # below this size ratio, drafting costs about what it saves
TYPICAL_CONTEXT = 2048  # default limit of a request, in tokens
LITTLE_SURVIVES = 0.9  # below this share of a perfect draft, the row is a note

Value = str | int | float | bool | tuple[str, ...] | None
Finding = Literal["ok", "note", "problem"]
Unit = Literal["", "size", "count", "share", "times", "bytes"]


@dataclass(frozen=True, slots=True)
class Row:
    """A measured property of target and drafter, with a finding and its reason in one clause.

    Properties of the pair are in `drafter`. `criterion` is whether a common compatibility criterion (SambaStudio's
    list) holds, or None if the row is not one of them. The criteria are reported, never required.
    """

    key: str
    label: str
    target: Value
    drafter: Value
    finding: Finding = "ok"
    why: str = ""
    unit: Unit = ""
    criterion: bool | None = None

    def as_dict(self) -> Mapping[str, Any]:
        """Return plain JSON values, with the finding as `verdict`."""
        values = asdict(self)
        return {("verdict" if key == "finding" else key): value for key, value in values.items()}


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a drafter, and the mode and the device that the settings ask for."""

    target: ModelFacts
    drafter: ModelFacts
    mode: str = "exact"
    device: str = "cpu"

    @property
    def size_ratio(self) -> float:
        """Ratio of the target's parameter count to the drafter's."""
        return self.target.weights.parameters / self.drafter.weights.parameters

    @property
    def shared(self) -> bool:
        """Whether both models share a vocabulary."""
        mine, other = self.target.tokenizer, self.drafter.tokenizer
        return mine is not None and other is not None and mine.fingerprint == other.fingerprint

    @property
    def problem(self) -> Fault | None:
        """Why the pair can't work; None if it can."""
        for role, side in (("target", self.target), ("drafter", self.drafter)):
            for reason in side.reasons:
                return reason.within(f"The {role} {side.name} can't be used")
        return None


def first_problem(*reasons: Fault | None) -> tuple[Finding, str]:
    """Return a problem with the first reason, else ok."""
    for reason in reasons:
        if reason is not None:
            return "problem", reason.clause
    return "ok", ""


def model_rows(pair: Pair) -> list[Row]:
    """Return the rows about the models, in report order."""
    sizes = [_output(pair), _parameters(pair), _ratio(pair), _stored(pair)]
    return [*sizes, *_layers(pair), _context(pair), _vocabulary(pair)]


def _output(pair: Pair) -> Row:
    finding, why = first_problem(pair.target.unsuitable, pair.drafter.unsuitable)
    values = pair.target.architecture, pair.drafter.architecture
    return Row("output", "text output", *values, finding, why or "both write text", criterion=finding == "ok")


def _parameters(pair: Pair) -> Row:
    target, drafter = pair.target.weights.parameters, pair.drafter.weights.parameters
    fewer = drafter < target
    finding: Finding = "ok" if fewer else "note"
    why = "the drafter has fewer" if fewer else "the drafter is not smaller, so drafting costs more than it saves"
    return Row("parameters", "parameters", target, drafter, finding, why, "size", criterion=fewer)


def _ratio(pair: Pair) -> Row:
    near = pair.size_ratio < NEAR_IN_SIZE
    finding: Finding = "note" if near else "ok"
    why = f"below {NEAR_IN_SIZE:.0f}: drafting costs much of the time that it saves" if near else "target to drafter"
    return Row("size_ratio", "size ratio", None, pair.size_ratio, finding, why, "times")


def _stored(pair: Pair) -> Row:
    return Row("stored_as", "weights stored as", stored_as(pair.target), stored_as(pair.drafter))


def stored_as(side: ModelFacts) -> str:
    """Return a model's dtype. A converted model also names its source quantization, whose loss its weights keep."""
    source = side.quantization
    return f"{side.weights.dtype} from {source}" if source else side.weights.dtype


def _layers(pair: Pair) -> list[Row]:
    target, drafter = pair.target.layers, pair.drafter.layers
    rows = [Row("layers", "layers", str(target), str(drafter))]
    if target.experts or drafter.experts:
        why = "all of them are in memory; a forward reads those that its rows choose"
        rows.append(Row("experts", "experts", target.mixture, drafter.mixture, why=why))
    why = "a rejected draft costs the rows since the last checkpoint" if target.recurrent or drafter.recurrent else ""
    return [*rows, Row("rollback", "a rollback costs", target.rollback, drafter.rollback, why=why), _mode(pair)]


def _mode(pair: Pair) -> Row:
    """Return the modes that the models will run in. Only a start can try whether exact mode holds."""
    mode, layers = pair.mode, pair.target.layers
    finding: Finding = "ok"
    why = "exact: no other row changes a bit, each start tests it; drafts are verified, so fast"
    if pair.device.startswith("cuda") and layers.recurrent:
        mode, finding, why = "", "note", "recurrent layers run on a CPU: set device cpu"
    elif mode != "exact":
        why = f"mode is {mode}: near-ties may differ with speculation"
    elif pair.device.startswith("cuda") and layers.experts:
        mode, finding = "fast", "note"
        why = "experts run on a GPU in fast mode only: near-ties may differ with speculation"
    return Row("mode", "mode", mode, "fast", finding, why)


def _context(pair: Pair) -> Row:
    target, drafter = pair.target.context, pair.drafter.context
    short = drafter is not None and drafter < min(target or TYPICAL_CONTEXT, TYPICAL_CONTEXT)
    finding: Finding = "note" if short else "ok"
    why = "equal" if target == drafter else "they differ, which is fine"
    if short:
        why = "the drafter sees a shorter, moving window of the text"
    return Row("context", "context length", target, drafter, finding, why, "count", criterion=target == drafter)


def _vocabulary(pair: Pair) -> Row:
    finding, why = first_problem(pair.target.overflow, pair.drafter.overflow)
    return Row("vocabulary", "vocabulary size", pair.target.vocab_rows, pair.drafter.vocab_rows, finding, why, "count")


def tokenizer_rows(pair: Pair) -> list[Row]:
    """Return the rows about each tokenizer. A side with a rejected tokenizer has a value in the first row only."""
    return [
        _kind(pair),
        _both(pair, "normalizer", "normalizer", lambda t: t.normalizer or "none"),
        _both(pair, "byte_fallback", "byte fallback", lambda t: t.byte_fallback),
        _both(pair, "dummy_prefix", "dummy prefix", lambda t: t.dummy_prefix, "cut by bytes, so it costs nothing"),
        _both(pair, "trims_offsets", "trims offsets", lambda t: t.trims_offsets, "bytes are counted, not offsets"),
        _notes(pair),
        _both(pair, "special_tokens", "special tokens", lambda t: len(t.special_ids), "never passed between models"),
        _both(pair, "bos", "begins a text", lambda t: tuple(_names(t, t.bos_ids)) or "none"),
        _eos(pair),
        _fim(pair),
        _tokenizer_class(pair),
    ]


def _both(pair: Pair, key: str, label: str, value: Callable[[TextTokenizer], Value], why: str = "") -> Row:
    """Return an informational row. `why` is shown if either value is truthy."""
    target, drafter = (
        None if side.tokenizer is None else value(side.tokenizer) for side in (pair.target, pair.drafter)
    )
    return Row(key, label, target, drafter, "ok", why if target or drafter else "")


def _kind(pair: Pair) -> Row:
    finding, why = first_problem(pair.target.lossy, pair.drafter.lossy)
    target, drafter = ("refused" if s.tokenizer is None else s.tokenizer.kind for s in (pair.target, pair.drafter))
    return Row("tokenizer", "tokenizer", target, drafter, finding, why or "text survives both to the byte")


def _notes(pair: Pair) -> Row:
    sides = (("target", pair.target), ("drafter", pair.drafter))
    notes = [f"{role}: {note}" for role, side in sides for note in (side.tokenizer.notes if side.tokenizer else ())]
    counts = [None if side.tokenizer is None else len(side.tokenizer.notes) for _, side in sides]
    finding: Finding = "note" if notes else "ok"
    return Row("tokenizer_notes", "tokenizer notes", counts[0], counts[1], finding, "; ".join(notes), "count")


def _eos(pair: Pair) -> Row:
    target, drafter = (
        None if t is None else tuple(_names(t, sorted(t.model_eos_ids))) or "none"
        for t in (pair.target.tokenizer, pair.drafter.tokenizer)
    )
    finding: Finding = "note" if target == "none" else "ok"
    why = "only the length limit ends a text" if target == "none" else "the target's own token ends a completion"
    return Row("eos", "ends a text", target, drafter, finding, why)


def _fim(pair: Pair) -> Row:
    finding: Finding = "ok"
    target, drafter = pair.target.template, pair.drafter.template
    why = "both read the text after the cursor"
    if isinstance(target, FimMissing):
        finding, why = "note", f"completions see only the text before the cursor: {target.reason}"
    elif isinstance(drafter, FimMissing):
        finding, why = "note", f"the drafter does not see the text after the cursor: {drafter.reason}"
    return Row("fim", "fill in the middle", _fim_value(pair.target), _fim_value(pair.drafter), finding, why)


def _fim_value(side: ModelFacts) -> Value:
    """Return the family and its orders, the one in use first."""
    if side.tokenizer is None or not isinstance(side.template, FimTemplate):
        return None if side.tokenizer is None else "none"
    known = side.tokenizer.config.get("codespec_fim_orders") or ()
    orders = [side.template.order, *(order for order in known if order != side.template.order)]
    return f"{side.template.family} ({', '.join(orders)})"


def _tokenizer_class(pair: Pair) -> Row:
    target, drafter = pair.target.tokenizer_class, pair.drafter.tokenizer_class
    same = bool(target) and target == drafter
    why = "equal" if same else "they differ, which is fine"
    values = target or "not stated", drafter or "not stated"
    return Row("tokenizer_class", "tokenizer class", *values, "ok", why, criterion=same)


def _names(tokenizer: TextTokenizer, ids: tuple[int, ...] | list[int]) -> list[str]:
    by_id = {number: name for name, number in tokenizer.vocab.items()}
    return [by_id.get(number, f"id {number}") for number in ids]


def cross_rows(pair: Pair, texts: Sequence[TokenizedText], left_out: int, drafts: Sequence[PerfectDrafts]) -> list[Row]:
    """Return the rows about both: vocabularies, bytes per token and perfect drafts.

    Returns none if a tokenizer was rejected.
    """
    target, drafter = pair.target.tokenizer, pair.drafter.tokenizer
    if target is None or drafter is None:
        return []
    same_ids = equal_ids_share(target, drafter)
    shares = single_token_share(target, drafter), single_token_share(drafter, target)
    why = "ids pass straight through" if pair.shared else "text crosses as bytes instead"
    one_token = "share of tokens that are one token in the other vocabulary"
    return [
        Row("equal_ids", "equal ids", None, same_ids, "ok", why, "share", criterion=pair.shared),
        Row("shared_vocabulary", "shared vocabulary", None, pair.shared, "ok", why),
        Row("single_token_overlap", "single-token overlap", *shares, "ok", one_token, "share"),
        _bytes_per_token(texts, left_out),
        *(_survival(each, pair.shared) for each in drafts),
    ]


def _bytes_per_token(texts: Sequence[TokenizedText], left_out: int) -> Row:
    size = sum(len(text.data) for text in texts)
    target, drafter = sum(len(text.ids) for text in texts), sum(text.drafter_tokens for text in texts)
    values = (size / target if target else None, size / drafter if drafter else None)
    finding: Finding = "note" if left_out else "ok"
    why = f"{left_out} files left out: a tokenizer has no tokens for some of their text" if left_out else ""
    return Row("bytes_per_token", "bytes a token", *values, finding, why, "bytes")


def _survival(drafts: PerfectDrafts, shared: bool) -> Row:
    share, accepted = drafts.survival, drafts.accepted_a_round
    finding: Finding = "ok"
    if share is None or accepted is None:
        finding, why = "note", "too little text to measure: name more with --files"
    else:
        why = f"{accepted:.1f} accepted of {drafts.drafted / drafts.rounds:.1f} drafted a round"
        if shared:
            why += ", by equal ids"
        if share < LITTLE_SURVIVES:
            finding, why = "note", f"{why}: drafts often end inside a target token"
    label = f"perfect draft of {drafts.tokens}"
    return Row(f"oracle_{drafts.tokens}", label, None, share, finding, why, "share")


def single_token_share(tokenizer: TextTokenizer, other: TextTokenizer) -> float:
    """Return the share of a vocabulary's ordinary tokens whose bytes are a single token of the other."""
    mine = _ordinary(tokenizer.token_bytes)
    spelled = set(_ordinary(other.token_bytes))
    return sum(data in spelled for data in mine) / len(mine) if mine else 0.0


def equal_ids_share(tokenizer: TextTokenizer, other: TextTokenizer) -> float:
    """Return the share of a vocabulary's ordinary ids that have the same bytes in the other."""
    mine = tokenizer.token_bytes
    equal = sum(bool(a) and a == b for a, b in zip(mine, other.token_bytes, strict=False))
    return equal / max(1, len(_ordinary(mine)))


def _ordinary(table: Sequence[bytes]) -> list[bytes]:
    return [data for data in table if data]
