"""The report's lines about both vocabularies together and what was measured on text. Knows counts, reads no files."""

from __future__ import annotations

from collections.abc import Sequence

from codespec.pair.oracle import Oracle, Spelled
from codespec.pair.rows import Finding, Pair, Row
from codespec.pair.vocabulary import equal_ids_share, single_token_share

LITTLE_SURVIVES = 0.9


def cross_rows(pair: Pair, texts: Sequence[Spelled], left_out: int, oracles: Sequence[Oracle]) -> list[Row]:
    """Vocabularies, bytes a token and the perfect drafter; nothing where a tokenizer was refused."""
    target, drafter = pair.target.tokenizer, pair.drafter.tokenizer
    if target is None or drafter is None:
        return []
    same_ids = equal_ids_share(target, drafter)
    shares = single_token_share(target, drafter), single_token_share(drafter, target)
    why = "ids pass straight through" if pair.shared else "text crosses as bytes instead"
    one_token = "of each one's tokens that are one token of the other"
    return [
        Row("equal_ids", "equal ids", None, same_ids, "ok", why, "share", criterion=pair.shared),
        Row("shared_vocabulary", "shared vocabulary", None, pair.shared, "ok", why),
        Row("single_token_overlap", "single-token overlap", *shares, "ok", one_token, "share"),
        _bytes_per_token(texts, left_out),
        *(_survival(oracle, pair.shared) for oracle in oracles),
    ]


def _bytes_per_token(texts: Sequence[Spelled], left_out: int) -> Row:
    size = sum(len(text.data) for text in texts)
    target, drafter = sum(len(text.ids) for text in texts), sum(text.drafter_tokens for text in texts)
    values = (size / target if target else None, size / drafter if drafter else None)
    finding: Finding = "note" if left_out else "ok"
    why = f"{left_out} files left out: a tokenizer has no tokens for what is in them" if left_out else ""
    return Row("bytes_per_token", "bytes a token", *values, finding, why, "bytes")


def _survival(oracle: Oracle, shared: bool) -> Row:
    share, accepted = oracle.survival, oracle.accepted_a_round
    finding: Finding = "ok"
    if share is None or accepted is None:
        finding, why = "note", "too little text to measure: name more with --files"
    else:
        why = f"{accepted:.1f} accepted of {oracle.drafted / oracle.rounds:.1f} drafted a round"
        if shared:
            why += ", by equal ids"
        if share < LITTLE_SURVIVES:
            finding, why = "note", f"{why}: drafts often end inside a target token"
    label = f"perfect draft of {oracle.tokens}"
    return Row(f"oracle_{oracle.tokens}", label, None, share, finding, why, "share")
