"""The findings about a pair: each model, size, context, mode, fill-in, tokens, and how much of a draft survives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from codespec.errors import Fault
from codespec.finding import Finding, from_fault, warning, well
from codespec.pair.facts import ModelFacts
from codespec.pair.retokenization import PerfectDrafts, TokenizedText
from codespec.text.fim_templates import FimMissing

NEAR_IN_SIZE = 4.0  # below this size ratio, drafting costs about what it saves
TYPICAL_CONTEXT = 2048  # default limit of a request, in tokens
LITTLE_SURVIVES = 0.9  # below this share of a perfect draft, the finding is a warning


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


def describe(role: str, facts: ModelFacts) -> Finding:
    """Return a model's architecture, size, layers and context, or the first reason why it can't be used."""
    if facts.reasons:
        return from_fault(role, facts.reasons[0])
    layers = facts.layers
    experts = f", {layers.experts} experts ({layers.chosen} for each token)" if layers.experts else ""
    context = f"context {facts.context:,}" if facts.context else "context not stated"
    size = f"{facts.weights.parameters / 1e6:,.1f} M parameters in {stored_as(facts)}"
    kept = f"layers: {layers}{experts}, a rollback costs {layers.rollback}"
    return well(role, f"{facts.architecture}, {size}, {context}, {kept}, from {facts.name}")


def stored_as(side: ModelFacts) -> str:
    """Return a model's dtype. A converted model also names its source quantization, whose loss its weights keep."""
    source = side.quantization
    return f"{side.weights.dtype} from {source}" if source else side.weights.dtype


def check_fill_in(target: ModelFacts) -> Finding:
    """Check whether the target is trained to fill in the middle; if not, the text after the cursor is ignored."""
    template = target.template
    if template is None or isinstance(template, FimMissing):
        reason = template.reason if template else "it has no usable tokenizer"
        return warning(
            "fill-in", f"the text after the cursor is not used ({reason})", "choose a target with FIM tokens"
        )
    others = "" if template.separator_id is not None else "; without other files, because it has no file separator"
    return well("fill-in", f"the target fills in ({template.family}, {template.order}){others}")


def check_models(pair: Pair) -> Iterator[Finding]:
    """Yield the findings that the models' files give."""
    yield describe("target", pair.target)
    yield describe("drafter", pair.drafter)
    ratio = f"the target has {pair.size_ratio:.1f} times the drafter's parameters"
    if pair.size_ratio < NEAR_IN_SIZE:
        mend = f"choose a drafter that is at least {NEAR_IN_SIZE:.0f} times smaller"
        yield warning("size", f"{ratio}, so drafting costs much of the time that it saves", mend)
    else:
        yield well("size", ratio)
    mine, other = pair.target.context or TYPICAL_CONTEXT, pair.drafter.context
    if other is not None and other < min(mine, TYPICAL_CONTEXT):
        said = f"the drafter sees only the last {other:,} tokens of the text"
        yield warning("context", said, f"choose a drafter with a context of {TYPICAL_CONTEXT:,}")
    if pair.device.startswith("cuda") and pair.target.layers.recurrent:
        yield warning("mode", "recurrent layers do not run on a GPU", 'set device = "cpu"')
    elif pair.device.startswith("cuda") and pair.target.layers.experts and pair.mode == "exact":
        said = "experts run on a GPU in fast mode only, so near-ties may differ with speculation"
        yield warning("mode", said, 'set device = "cpu" for exact texts, or mode = "fast"')


def check_tokenizers(pair: Pair) -> Iterator[Finding]:
    """Yield the findings about usable tokenizers."""
    for role, side in (("target", pair.target), ("drafter", pair.drafter)):
        for note in side.tokenizer.notes if side.tokenizer else ():
            yield warning("tokenizer", f"{role}: {note}", "choose another model if that matters")
    if pair.target.tokenizer is not None and not pair.target.tokenizer.model_eos_ids:
        said = "the target has no end-of-text token, so only the length limit ends a text"
        yield warning("end", said, "set eos_token_id in its generation_config.json")
    yield check_fill_in(pair.target)
    drafter = pair.drafter.template
    if isinstance(drafter, FimMissing) and not isinstance(pair.target.template, FimMissing):
        said = f"the drafter does not see the text after the cursor ({drafter.reason})"
        yield warning("drafter-fill", said, "choose a drafter with FIM tokens")


def check_drafts(
    pair: Pair, texts: Sequence[TokenizedText], left_out: int, drafts: Sequence[PerfectDrafts]
) -> Iterator[Finding]:
    """Yield the bytes per token of both models, and the share of perfect drafts that survives retokenization."""
    size = sum(len(text.data) for text in texts)
    target, drafter = sum(len(text.ids) for text in texts), sum(text.drafter_tokens for text in texts)
    said = f"{size / max(1, target):.2f} bytes a token in the target, {size / max(1, drafter):.2f} in the drafter"
    said += "; the vocabulary is shared, so ids pass straight through" if pair.shared else ""
    if left_out:
        mend = "a tokenizer has no tokens for some of their text; name others with --files"
        yield warning("tokens", f"{said}; {left_out} files left out", mend)
    else:
        yield well("tokens", said)
    shares = [each.survival for each in drafts if each.survival is not None]
    if len(shares) < len(drafts):
        yield warning("drafts", "too little text to measure", "name more with --files")
        return
    lengths = ", ".join(str(each.tokens) for each in drafts)
    said = f"{', '.join(f'{100 * share:.1f}' for share in shares)} % of perfect drafts of {lengths} tokens survive"
    if min(shares) < LITTLE_SURVIVES:
        yield warning("drafts", f"{said}: the rest ends inside a target token", "choose a drafter with similar tokens")
    else:
        yield well("drafts", said)
