"""The pair report: its findings, the verdict, and recommended settings.

The settings are derived from files and text. The actual speed can only be measured by a benchmark on the user's
machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from codespec.contract.engine_config import EngineConfig
from codespec.errors import Fault
from codespec.finding import Finding, as_json
from codespec.pair.facts import ModelFacts
from codespec.pair.retokenization import LENGTHS, PerfectDrafts, measure_perfect_drafts, tokenize_texts
from codespec.pair.rows import Pair, check_drafts, check_models, check_tokenizers
from codespec.pair.sample import Sample
from codespec.store.machine import computes_bfloat16

MIN_RATIO = 2.0  # the target must be at least this many times larger for a gain
MIN_SURVIVAL = 0.5


class Recommended(NamedTuple):
    """The value of one key of `EngineConfig`, and a reason in one clause ("" if obvious)."""

    value: str | int
    why: str = ""


@dataclass(frozen=True, slots=True)
class PairReport:
    """The result of `codespec check`. `problem` is why the pair can't work; None if it can."""

    problem: Fault | None
    sample: Sample
    findings: tuple[Finding, ...]
    perfect_drafts: tuple[PerfectDrafts, ...]
    settings: Mapping[str, Recommended]

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
            "settings": {key: setting.value for key, setting in self.settings.items()},
        }


def check_pair(
    target: ModelFacts, drafter: ModelFacts, sample: Sample, mode: str = "exact", device: str = "cpu"
) -> PairReport:
    """Compare two models by their files and on the sample text, for a mode and a device of the target."""
    pair, mine, other = Pair(target, drafter, mode, device), target.tokenizer, drafter.tokenizer
    findings, drafts = list(check_models(pair)), tuple[PerfectDrafts, ...]()
    if mine is not None and other is not None:
        texts = tokenize_texts(mine, other, [text for _, text in sample.texts])
        drafts = tuple(measure_perfect_drafts(mine, other, texts, tokens) for tokens in LENGTHS)
        findings += check_tokenizers(pair)
        findings += check_drafts(pair, texts, len(sample.texts) - len(texts), drafts)
    return PairReport(pair.problem, sample, tuple(findings), drafts, recommend(pair, drafts))


def recommend(pair: Pair, drafts: Sequence[PerfectDrafts]) -> dict[str, Recommended]:
    """Return the settings for a configuration file; none for an unusable target."""
    if pair.target.reasons:
        return {}
    default = EngineConfig()
    settings = {"target": Recommended(pair.target.name)}
    if pair.target.name == default.target:
        settings = {"model": Recommended("starter")}
    settings["dtype"] = _dtype(pair.target)
    if useless := _why_useless(pair, drafts):
        return settings | {
            "drafter": Recommended("none", useless),
            "proposers": Recommended("suffix", "looks text up instead"),
        }
    if pair.drafter.name != default.drafter:
        settings["drafter"] = Recommended(pair.drafter.name)
    return settings | {
        "drafter_dtype": _dtype(pair.drafter),
        "proposers": Recommended("chain", "look text up, then draft"),
    }


def toml(settings: Mapping[str, Recommended]) -> str:
    """Format the settings as a configuration file, with reasons as comments."""
    lines = []
    for key, (value, why) in settings.items():
        text = json.dumps(value, ensure_ascii=False)  # a JSON string is also a TOML string
        lines.append(f"{key} = {text}" + (f"  # {why}" if why else ""))
    return "\n".join(lines)


def _why_useless(pair: Pair, drafts: Sequence[PerfectDrafts]) -> str:
    if pair.drafter.reasons:
        return "this one can't be used"
    if pair.size_ratio < MIN_RATIO:
        return "too close to the target's size to pay off"
    best = max((each.survival for each in drafts if each.survival is not None), default=1.0)
    return "too little of its text is accepted" if best < MIN_SURVIVAL else ""


def _dtype(side: ModelFacts) -> Recommended:
    if side.weights.dtype == "F32" and not side.quantization:
        return Recommended("float32", "as it is stored")
    if not computes_bfloat16():
        return Recommended("float32", "this processor has no bfloat16 products")
    return Recommended("bfloat16", "checking several tokens costs about one")
