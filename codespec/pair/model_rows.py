"""The report's lines about the two models: sizes, context, architecture, vocabulary. Knows facts, no text."""

from __future__ import annotations

from codespec.pair.facts import ModelFacts
from codespec.pair.gguf import read_source
from codespec.pair.rows import Finding, Pair, Row, first_problem

NEAR_IN_SIZE = 4.0  # below this a round of drafting costs about what it saves
TYPICAL_CONTEXT = 2048  # what a request takes at most by default


def model_rows(pair: Pair) -> list[Row]:
    """All of them, in the order of the report."""
    return [_output(pair), _parameters(pair), _ratio(pair), _stored(pair), _context(pair), _vocabulary(pair)]


def _output(pair: Pair) -> Row:
    finding, why = first_problem(pair.target.unsuitable, pair.drafter.unsuitable)
    values = pair.target.architecture, pair.drafter.architecture
    return Row("output", "text output", *values, finding, why or "both write text", criterion=finding == "ok")


def _parameters(pair: Pair) -> Row:
    target, drafter = pair.target.weights.parameters, pair.drafter.weights.parameters
    fewer = drafter < target
    finding: Finding = "ok" if fewer else "note"
    why = "the drafter has fewer" if fewer else "the drafter is not smaller, so guessing costs more than it saves"
    return Row("parameters", "parameters", target, drafter, finding, why, "size", criterion=fewer)


def _ratio(pair: Pair) -> Row:
    near = pair.size_ratio < NEAR_IN_SIZE
    finding: Finding = "note" if near else "ok"
    why = f"below {NEAR_IN_SIZE:.0f}: drafting costs much of what it saves" if near else "target to drafter"
    return Row("size_ratio", "size ratio", None, pair.size_ratio, finding, why, "times")


def _stored(pair: Pair) -> Row:
    return Row("stored_as", "weights stored as", stored_as(pair.target), stored_as(pair.drafter))


def stored_as(side: ModelFacts) -> str:
    """A model's number format; of a converted one with what its weights were before, which they keep the loss of."""
    source = read_source(side.config)
    return f"{side.weights.dtype} from {source}" if source else side.weights.dtype


def _context(pair: Pair) -> Row:
    target, drafter = pair.target.context, pair.drafter.context
    short = drafter is not None and drafter < min(target or TYPICAL_CONTEXT, TYPICAL_CONTEXT)
    finding: Finding = "note" if short else "ok"
    why = "equal" if target == drafter else "not equal, nor need they be"
    if short:
        why = "the drafter sees a shorter window of the text, which moves on when full"
    return Row("context", "context length", target, drafter, finding, why, "count", criterion=target == drafter)


def _vocabulary(pair: Pair) -> Row:
    finding, why = first_problem(pair.target.overflow, pair.drafter.overflow)
    return Row("vocabulary", "vocabulary size", pair.target.vocab_rows, pair.drafter.vocab_rows, finding, why, "count")
