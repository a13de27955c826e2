"""The pair report: its rows, the verdict, and recommended settings.

The settings are derived from files and text. The actual speed can only be measured by a benchmark on the user's
machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from codespec.contract.engine_config import EngineConfig
from codespec.errors import Fault
from codespec.pair.facts import ModelFacts
from codespec.pair.retokenization import LENGTHS, PerfectDrafts, TokenizedText, measure_perfect_drafts, tokenize_texts
from codespec.pair.rows import Pair, Row, cross_rows, model_rows, tokenizer_rows
from codespec.pair.sample import Sample
from codespec.store.machine import computes_bfloat16

Verdict = Literal["works", "works, with notes", "can't work"]

LEAST_RATIO = 2.0  # the target must be at least this many times larger for a gain
LEAST_SURVIVAL = 0.5


@dataclass(frozen=True, slots=True)
class RecommendedSetting:
    """One key of `EngineConfig`, its value, and a reason in one clause ("" if obvious)."""

    key: str
    value: str | int
    why: str = ""


@dataclass(frozen=True, slots=True)
class PairReport:
    """The result of `codespec check`."""

    pair: Pair
    sample: Sample
    rows: tuple[Row, ...]
    perfect_drafts: tuple[PerfectDrafts, ...]
    settings: tuple[RecommendedSetting, ...]

    @property
    def problem(self) -> Fault | None:
        """Why the pair can't work; None if it can."""
        return self.pair.problem

    @property
    def verdict(self) -> Verdict:
        """The verdict in at most three words."""
        if self.problem:
            return "can't work"
        return "works, with notes" if any(row.finding == "note" for row in self.rows) else "works"

    def as_dict(self) -> Mapping[str, Any]:
        """Return plain JSON values. The keys are a stable interface."""
        return {
            "verdict": self.verdict,
            "problem": self.problem.sentence if self.problem else None,
            "target": self.pair.target.name,
            "drafter": self.pair.drafter.name,
            "shared_vocabulary": self.pair.shared,
            "rows": [row.as_dict() for row in self.rows],
            "oracle": [_drafts_dict(drafts) for drafts in self.perfect_drafts],
            "usual_criteria": {row.key: row.criterion for row in self.rows if row.criterion is not None},
            "files": {
                "source": self.sample.source,
                "count": len(self.sample.texts),
                "bytes": self.sample.size,
                "names": [name for name, _ in self.sample.texts],
            },
            "settings": {setting.key: setting.value for setting in self.settings},
            "toml": toml(self.settings),
        }


def check_pair(
    target: ModelFacts, drafter: ModelFacts, sample: Sample, mode: str = "exact", device: str = "cpu"
) -> PairReport:
    """Compare two models by their files and on the sample text, for a mode and a device of the target."""
    pair = Pair(target, drafter, mode, device)
    texts, drafts = _measure(pair, sample)
    cross = cross_rows(pair, texts, len(sample.texts) - len(texts), drafts)
    rows = (*model_rows(pair), *tokenizer_rows(pair), *cross)
    return PairReport(pair, sample, rows, drafts, tuple(recommend(pair, drafts)))


def _measure(pair: Pair, sample: Sample) -> tuple[list[TokenizedText], tuple[PerfectDrafts, ...]]:
    """Return the tokenized sample and perfect drafts of each length; empty if a tokenizer was rejected."""
    target, drafter = pair.target.tokenizer, pair.drafter.tokenizer
    if target is None or drafter is None:
        return [], ()
    texts = tokenize_texts(target, drafter, [text for _, text in sample.texts])
    return texts, tuple(measure_perfect_drafts(target, drafter, texts, tokens) for tokens in LENGTHS)


def _drafts_dict(drafts: PerfectDrafts) -> Mapping[str, Any]:
    return {**asdict(drafts), "survival": drafts.survival, "accepted_a_round": drafts.accepted_a_round}


def recommend(pair: Pair, drafts: Sequence[PerfectDrafts]) -> list[RecommendedSetting]:
    """Return the settings for a configuration file; none for an unusable target."""
    if pair.target.reasons:
        return []
    useless = _why_useless(pair, drafts)
    ours = pair.target.name == EngineConfig().target
    settings = [RecommendedSetting("model", "starter") if ours else RecommendedSetting("target", pair.target.name)]
    settings.append(_dtype("dtype", pair.target))
    if useless:
        return [
            *settings,
            RecommendedSetting("drafter", "none", useless),
            RecommendedSetting("proposers", "suffix", "looks text up instead"),
        ]
    if pair.drafter.name != EngineConfig().drafter:
        settings.append(RecommendedSetting("drafter", pair.drafter.name))
    settings += [
        _dtype("drafter_dtype", pair.drafter),
        RecommendedSetting("proposers", "chain", "look text up, then draft"),
    ]
    return [*settings, _draft_tokens(pair, drafts)]


def toml(settings: Sequence[RecommendedSetting]) -> str:
    """Format the settings as a configuration file, with reasons as comments."""
    lines = []
    for setting in settings:
        value = json.dumps(setting.value, ensure_ascii=False)  # a JSON string is also a TOML string
        lines.append(f"{setting.key} = {value}" + (f"  # {setting.why}" if setting.why else ""))
    return "".join(f"{line}\n" for line in lines)


def _why_useless(pair: Pair, drafts: Sequence[PerfectDrafts]) -> str:
    if pair.drafter.reasons:
        return "this one can't be used"
    if pair.size_ratio < LEAST_RATIO:
        return "too close to the target's size to pay off"
    best = max((each.survival for each in drafts if each.survival is not None), default=1.0)
    return "too little of its text is accepted" if best < LEAST_SURVIVAL else ""


def _dtype(key: str, side: ModelFacts) -> RecommendedSetting:
    if side.weights.dtype == "F32" and not side.quantization:
        return RecommendedSetting(key, "float32", "as it is stored")
    if not computes_bfloat16():
        return RecommendedSetting(key, "float32", "this processor has no bfloat16 products")
    return RecommendedSetting(key, "bfloat16", "checking several tokens costs about one")


def _draft_tokens(pair: Pair, drafts: Sequence[PerfectDrafts]) -> RecommendedSetting:
    """Return the maximum draft length and its survival.

    The default is kept, because the cost policy shortens drafts.
    """
    default = EngineConfig().draft_tokens
    if pair.shared:
        return RecommendedSetting("draft_tokens", default, "ids pass straight through")
    measured = {each.tokens: each.survival for each in drafts if each.survival is not None}
    share = measured.get(default)
    if share is None:
        return RecommendedSetting("draft_tokens", default, "not measured")
    return RecommendedSetting("draft_tokens", default, f"{share:.0%} of a perfect draft survive")
