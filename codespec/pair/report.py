"""The pair report: every line, the verdict, and settings to begin with. Knows how the parts come together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from codespec.pair.cross_rows import cross_rows
from codespec.pair.facts import ModelFacts
from codespec.pair.model_rows import model_rows
from codespec.pair.oracle import LENGTHS, Oracle, Spelled, measure, spell_texts
from codespec.pair.rows import Pair, Row
from codespec.pair.sample import Sample
from codespec.pair.settings import Setting, recommend, toml
from codespec.pair.text_rows import text_rows

Verdict = Literal["works", "works, with notes", "can't work"]


@dataclass(frozen=True, slots=True)
class PairReport:
    """What `codespec check` found; `problem` is the sentence why a pair can't work, else ""."""

    pair: Pair
    sample: Sample
    rows: tuple[Row, ...]
    oracles: tuple[Oracle, ...]
    settings: tuple[Setting, ...]

    @property
    def problem(self) -> str:
        """Why the pair can't work, in one sentence; "" if it can."""
        return self.pair.problem

    @property
    def verdict(self) -> Verdict:
        """The report in three words at most."""
        if self.problem:
            return "can't work"
        return "works, with notes" if any(row.finding == "note" for row in self.rows) else "works"

    def as_dict(self) -> Mapping[str, Any]:
        """Plain JSON values under keys that stay."""
        return {
            "verdict": self.verdict,
            "problem": self.problem or None,
            "target": self.pair.target.name,
            "drafter": self.pair.drafter.name,
            "shared_vocabulary": self.pair.shared,
            "rows": [row.as_dict() for row in self.rows],
            "oracle": [_oracle_dict(oracle) for oracle in self.oracles],
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


def check_pair(target: ModelFacts, drafter: ModelFacts, sample: Sample) -> PairReport:
    """Compares two models by their files and by the sample's text."""
    pair = Pair(target, drafter)
    texts = _spelled(pair, sample)
    oracles = _oracles(pair, texts)
    cross = cross_rows(pair, texts, len(sample.texts) - len(texts), oracles)
    rows = (*model_rows(pair), *text_rows(pair), *cross)
    return PairReport(pair, sample, rows, oracles, tuple(recommend(pair, oracles)))


def _spelled(pair: Pair, sample: Sample) -> list[Spelled]:
    target, drafter = pair.target.tokenizer, pair.drafter.tokenizer
    if target is None or drafter is None:
        return []
    return spell_texts(target, drafter, [text for _, text in sample.texts])


def _oracles(pair: Pair, texts: list[Spelled]) -> tuple[Oracle, ...]:
    target, drafter = pair.target.tokenizer, pair.drafter.tokenizer
    if target is None or drafter is None:
        return ()
    return tuple(measure(target, drafter, texts, tokens) for tokens in LENGTHS)


def _oracle_dict(oracle: Oracle) -> Mapping[str, Any]:
    return {**asdict(oracle), "survival": oracle.survival, "accepted_a_round": oracle.accepted_a_round}
