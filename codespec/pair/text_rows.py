"""The report's lines about each side's tokenizer: kind, normalizer, prefixes, special tokens, FIM.

Knows what a tokenizer declares; compares no vocabularies.
"""

from __future__ import annotations

from collections.abc import Callable

from codespec.pair.facts import ModelFacts
from codespec.pair.rows import Finding, Pair, Row, Value, first_problem
from codespec.text.fim import FimMissing, FimTemplate
from codespec.text.tokenizer import TextTokenizer


def text_rows(pair: Pair) -> list[Row]:
    """All of them; a side whose tokenizer is refused has no values behind the first."""
    return [
        _kind(pair),
        _both(pair, "normalizer", "normalizer", lambda t: t.normalizer or "none"),
        _both(pair, "byte_fallback", "byte fallback", lambda t: t.byte_fallback),
        _both(pair, "dummy_prefix", "dummy prefix", lambda t: t.dummy_prefix, "cut by bytes, so it costs nothing"),
        _both(pair, "trims_offsets", "trims offsets", lambda t: t.trims_offsets, "bytes are counted, not offsets"),
        _notes(pair),
        _both(pair, "special_tokens", "special tokens", lambda t: len(t.special_ids), "none crosses as text"),
        _both(pair, "bos", "begins a text", lambda t: tuple(_names(t, t.bos_ids)) or "none"),
        _eos(pair),
        _fim(pair),
        _tokenizer_class(pair),
    ]


def _both(pair: Pair, key: str, label: str, value: Callable[[TextTokenizer], Value], why: str = "") -> Row:
    """A line that states and never complains; `why` is said where the value is not the plain one."""
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
    why = "nothing but the length ends the target's text" if target == "none" else "the target's own ends a completion"
    return Row("eos", "ends a text", target, drafter, finding, why)


def _fim(pair: Pair) -> Row:
    finding: Finding = "ok"
    target, drafter = pair.target.template, pair.drafter.template
    why = "both read the text behind the cursor"
    if isinstance(target, FimMissing):
        finding, why = "note", f"completions see only the text before the cursor: {target.reason}"
    elif isinstance(drafter, FimMissing):
        finding, why = "note", f"the drafter guesses without the text behind the cursor: {drafter.reason}"
    return Row("fim", "fill in the middle", _fim_value(pair.target), _fim_value(pair.drafter), finding, why)


def _fim_value(side: ModelFacts) -> Value:
    """Family and orders; the order that is used stands first."""
    if side.tokenizer is None or not isinstance(side.template, FimTemplate):
        return None if side.tokenizer is None else "none"
    known = side.tokenizer.config.get("codespec_fim_orders") or ()
    orders = [side.template.order, *(order for order in known if order != side.template.order)]
    return f"{side.template.family} ({', '.join(orders)})"


def _tokenizer_class(pair: Pair) -> Row:
    target, drafter = pair.target.tokenizer_class, pair.drafter.tokenizer_class
    same = bool(target) and target == drafter
    why = "equal" if same else "not equal, nor need they be"
    values = target or "not stated", drafter or "not stated"
    return Row("tokenizer_class", "tokenizer class", *values, "ok", why, criterion=same)


def _names(tokenizer: TextTokenizer, ids: tuple[int, ...] | list[int]) -> list[str]:
    by_id = {number: name for name, number in tokenizer.vocab.items()}
    return [by_id.get(number, f"id {number}") for number in ids]
