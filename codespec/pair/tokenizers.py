"""Report rows about the tokenizers: their properties, the overlap of the vocabularies, and the retokenization loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from codespec.pair.facts import ModelFacts
from codespec.pair.retokenization import PerfectDrafts, TokenizedText
from codespec.pair.rows import Finding, Pair, Row, Value, first_problem
from codespec.text.fim_templates import FimMissing, FimTemplate
from codespec.text.tokenizer import TextTokenizer

LITTLE_SURVIVES = 0.9


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
