"""The clock's word on what the replay says: the real engine on some of the prompts, every policy in turn on each.

Knows engines and seconds. Each run has a new engine and new proposers around the same loaded models, so that nobody
finds a prompt already read or a text already remembered.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from codespec.bench.mismatch import first_difference
from codespec.bench.pair import Pair
from codespec.bench.policy_rows import Row
from codespec.bench.policy_scores import Score
from codespec.bench.recording import Recording
from codespec.engine.engine import Engine
from codespec.proposers.chain import ChainProposer


@dataclass(slots=True)
class Measured:
    """Decoding milliseconds by policy and prompt (reading the prompt is left out), and how often the real rounds were
    the replayed ones, each prompt replayed as it is measured: alone.
    """

    ms: dict[str, list[float]] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    rounds: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    texts: list[tuple[int, ...]] = field(default_factory=list)  # the first policy's ids
    differing: list[str] = field(default_factory=list)  # where another policy's are others

    def ratio(self, name: str, other: str) -> float:
        """How many times as fast as another policy: the median over prompts."""
        return statistics.median(b / a for a, b in zip(self.ms[name], self.ms[other], strict=True))

    def as_dict(self, scores: dict[str, Score]) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            name: {
                "tokens_per_second": 1000 * self.tokens[name] / sum(self.ms[name]),
                "times_off": self.ratio(name, "off"),
                "rounds_as_replayed": self._as_replayed(name, scores[name]),
            }
            for name in self.ms
        }

    def _as_replayed(self, name: str, score: Score) -> float:
        """Share of the prompts whose rounds, drafted and accepted tokens were the replay's."""
        expected = [(tally.rounds, tally.drafted, tally.accepted) for tally in score.by_prompt]
        return statistics.mean(a == b for a, b in zip(self.rounds[name], expected, strict=True))


def measure_policies(
    pair: Pair,
    rows: Sequence[Row],
    recordings: Sequence[Recording],
    advance: Callable[[], None],
) -> Measured:
    """Completes every recording with every row's policy in turn."""
    found = Measured()
    for recording in recordings:
        for row in rows:
            _complete(pair, row, recording, found)
            advance()
    return found


def _complete(pair: Pair, row: Row, recording: Recording, found: Measured) -> None:
    """One prompt under one policy. An enlarged target may round a near-tie the other way, so its text may differ from
    the recorded one; between policies it must not.
    """
    proposer = ChainProposer([part for part in pair.proposers() if part.name in row.sources])
    engine = Engine(pair.target, proposer, row.make([recording]), context=pair.context, warmup=pair.warmup)
    done = engine.complete([recording.request])[0]
    times, stats = found.ms.setdefault(row.name, []), done.stats
    if len(times) == len(found.texts):
        found.texts.append(done.token_ids)
    position = first_difference(done.token_ids, found.texts[len(times)])
    if position is not None:
        found.differing.append(f"{row.name}, {recording.spot.path}, token {position + 1}")
    times.append(stats.total_ms - stats.prefill_ms)
    found.rounds.setdefault(row.name, []).append((stats.rounds, stats.drafted, stats.accepted))
    found.tokens[row.name] = found.tokens.get(row.name, 0) + len(done.token_ids)
