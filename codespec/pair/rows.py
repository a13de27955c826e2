"""Rows of the pair report, and those about the models: sizes, context, architecture, vocabulary size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from codespec.errors import Fault
from codespec.pair.facts import ModelFacts

NEAR_IN_SIZE = 4.0  # below this size ratio, drafting costs about what it saves
TYPICAL_CONTEXT = 2048  # default limit of a request, in tokens

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
    asked, layers = pair.mode, pair.target.layers
    finding: Finding = "ok"
    why = "exact: no other row changes a bit, each start tests it; drafts are verified, so fast"
    if pair.device.startswith("cuda") and layers.recurrent:
        asked, finding, why = "", "note", "recurrent layers run on a CPU: set device cpu"
    elif asked != "exact":
        why = f"mode is {asked}: near-ties may differ with speculation"
    elif pair.device.startswith("cuda") and layers.experts:
        asked, finding = "fast", "note"
        why = "experts run on a GPU in fast mode only: near-ties may differ with speculation"
    return Row("mode", "mode", asked, "fast", finding, why)


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
