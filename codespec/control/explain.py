"""Why a draft is as long as it is, in one line for people. Knows chances and lengths, no text."""

from __future__ import annotations

from collections.abc import Sequence

from codespec.control.priors import logit, prior_of, sigmoid
from codespec.control.survival import Place, Survival
from codespec.sequence import Candidates


def explain(
    survival: Survival, sources: Sequence[str], place: Place, candidates: Candidates, length: int, most: int
) -> str:
    """Context, prior, learned value (of the first token; n judgements), chosen length and why; `most` tokens might have
    been risked.
    """
    source = candidates.source or (sources[-1] if sources else "")
    expected = prior_of(source)
    prior = sigmoid(logit(expected.chance(0)) + expected.shift(place[0]))
    learned, seen = survival.rate(source, place, 0), survival.seen(source, place)
    where, why = place[0] or "any context", _why(candidates, length, most)
    return f"{where}: {source} prior {prior:.2f}, learned {learned:.2f} (n={seen:.0f}) → {length}; {why}"


def _why(candidates: Candidates, length: int, most: int) -> str:
    if not candidates.source:
        return "nothing found, and drafting does not pay"
    if length == len(candidates.ids):
        return candidates.reason
    if length >= most:
        return "a longer one would risk more than drafts of this text may lose"
    return "the next row does not pay" if length else "not even one row pays"
