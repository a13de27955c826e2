"""Whether a target and a drafter work together, by their files and on sample text: the report of `codespec check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from codespec.errors import Fault, Finding, as_json, from_fault, warning, well
from codespec.pair.facts import ModelFacts
from codespec.pair.retokenization import LENGTHS, PerfectDrafts, TokenizedText, measure_perfect_drafts, tokenize_texts
from codespec.pair.sample import Sample
from codespec.store.model_config import architecture, read_layers
from codespec.text.fim_templates import FimMissing

NEAR_IN_SIZE = 4.0  # below this size ratio, drafting costs about what it saves
LITTLE_SURVIVES = 0.9  # below this share of a perfect draft, the finding is a warning


@dataclass(frozen=True, slots=True)
class PairReport:
    """The result of `codespec check`. `problem` is why the pair can't work; None if it can."""

    problem: Fault | None
    sample: Sample
    findings: tuple[Finding, ...]
    perfect_drafts: tuple[PerfectDrafts, ...]

    @property
    def verdict(self) -> str:
        """Whether the pair works, and the subjects to look at."""
        if self.problem:
            return "can't work"
        notes = dict.fromkeys(finding.name for finding in self.findings if finding.state == "warning")
        return f"works, with notes ({', '.join(notes)})" if notes else "works"

    def as_dict(self) -> Mapping[str, Any]:
        """Return plain JSON values. The keys are a stable interface."""
        return {
            **as_json(self.findings),
            "problem": self.problem.sentence if self.problem else None,
            "perfect_drafts": [{**asdict(drafts), "survival": drafts.survival} for drafts in self.perfect_drafts],
            "files": {"source": self.sample.source, "names": [name for name, _ in self.sample.texts]},
        }


def check_pair(target: ModelFacts, drafter: ModelFacts, sample: Sample) -> PairReport:
    """Compare two models by their files and on the sample text."""
    sides = {"target": target, "drafter": drafter}
    faults = [
        side.reasons[0].within(f"The {role} {side.name} can't be used") for role, side in sides.items() if side.reasons
    ]
    findings, drafts = [describe(role, side) for role, side in sides.items()], tuple[PerfectDrafts, ...]()
    findings.append(_check_size(target, drafter))
    mine, other = target.tokenizer, drafter.tokenizer
    if mine is not None and other is not None:
        texts = tokenize_texts(mine, other, [text for _, text in sample.texts])
        drafts = tuple(measure_perfect_drafts(mine, other, texts, tokens) for tokens in LENGTHS)
        findings.append(check_fill_in(target))
        lacks = drafter.template
        if isinstance(lacks, FimMissing) and not isinstance(target.template, FimMissing):
            message = f"the drafter does not see the text after the cursor ({lacks.reason})"
            findings.append(warning("drafter-fill", message, "choose a drafter with FIM tokens"))
        shared = mine.fingerprint == other.fingerprint
        findings += [_check_tokens(texts, len(sample.texts) - len(texts), shared), _check_drafts(drafts)]
    return PairReport(faults[0] if faults else None, sample, tuple(findings), drafts)


def describe(role: str, facts: ModelFacts) -> Finding:
    """Return a model's architecture, size, layers and context, or the first reason why it can't be used."""
    if facts.reasons:
        return from_fault(role, facts.reasons[0])
    layers = read_layers(facts.config)
    experts = f", {layers.experts} experts ({layers.chosen} for each token)" if layers.experts else ""
    context = f"context {facts.context:,}" if facts.context else "context not stated"
    size = f"{facts.weights.parameters / 1e6:,.1f} M parameters in {facts.stored_as}"
    kept = f"layers: {layers}{experts}, a rollback costs {layers.rollback}"
    return well(role, f"{architecture(facts.config)}, {size}, {context}, {kept}, from {facts.name}")


def check_fill_in(target: ModelFacts) -> Finding:
    """Check whether the target is trained to fill in the middle; if not, the text after the cursor is ignored."""
    template = target.template
    if template is None or isinstance(template, FimMissing):
        message = f"the text after the cursor is not used ({template.reason if template else 'no usable tokenizer'})"
        return warning("fill-in", message, "choose a target with FIM tokens")
    others = "" if template.separator_id is not None else "; without other files, because it has no file separator"
    return well("fill-in", f"the target fills in ({template.family}, {template.order}){others}")


def _check_size(target: ModelFacts, drafter: ModelFacts) -> Finding:
    ratio = target.weights.parameters / drafter.weights.parameters
    message = f"the target has {ratio:.1f} times the drafter's parameters"
    if ratio >= NEAR_IN_SIZE:
        return well("size", message)
    fix = f"choose a drafter that is at least {NEAR_IN_SIZE:.0f} times smaller"
    return warning("size", f"{message}, so drafting costs much of the time that it saves", fix)


def _check_tokens(texts: Sequence[TokenizedText], left_out: int, shared: bool) -> Finding:
    """Return the bytes per token of both models."""
    size = sum(len(text.data) for text in texts)
    target, drafter = sum(len(text.ids) for text in texts), sum(text.drafter_tokens for text in texts)
    message = f"{size / max(1, target):.2f} bytes a token in the target, {size / max(1, drafter):.2f} in the drafter"
    message += "; the vocabulary is shared, so ids pass straight through" if shared else ""
    if not left_out:
        return well("tokens", message)
    fix = "a tokenizer has no tokens for some of their text; name others with --files"
    return warning("tokens", f"{message}; {left_out} files left out", fix)


def _check_drafts(drafts: Sequence[PerfectDrafts]) -> Finding:
    """Return the share of perfect drafts that survives retokenization."""
    shares = [each.survival for each in drafts if each.survival is not None]
    if len(shares) < len(drafts):
        return warning("drafts", "too little text to measure", "name more with --files")
    lengths = ", ".join(str(each.tokens) for each in drafts)
    message = f"{', '.join(f'{100 * share:.1f}' for share in shares)} % of perfect drafts of {lengths} tokens survive"
    if min(shares) >= LITTLE_SURVIVES:
        return well("drafts", message)
    return warning("drafts", f"{message}: the rest ends inside a target token", "choose a drafter with similar tokens")
