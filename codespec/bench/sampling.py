"""Three ways to draft for a sampled text, on the same prompts, models and seeds: with the target's own luck, greedily,
and by rejection. Knows engines and models.

Rejection needs a drafter with the target's vocabulary. The starter pair has two, so the target is drafted by itself
without a layer; the other two ways are measured with the pair as it is, too. Every way drafts the same fixed number
of tokens, so that acceptance can be compared; ways take turns, prompt by prompt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from torch import Tensor, nn

from codespec.bench.prompts import BenchPrompt
from codespec.config import EngineConfig
from codespec.control.draft_length import FixedLength
from codespec.engine.engine import Engine
from codespec.errors import ConfigError
from codespec.models.language_model import LanguageModel
from codespec.models.loader import load_model
from codespec.proposers.draft_model import DraftModel, Guess
from codespec.types import CompletionRequest, Stats

CONTEXT = 1024  # of prompt and completion
TEMPERATURES = (0.4, 0.8, 1.0)
OWN_LUCK, GREEDY, REJECTION, PLAIN = "own luck", "greedy", "rejection", "plain"


@dataclass(frozen=True, slots=True)
class SamplingBench:
    """What is measured: `drafted` tokens a round, `tokens` a prompt."""

    config: EngineConfig
    prompts: Sequence[BenchPrompt]
    tokens: int = 48
    drafted: int = 4
    temperatures: tuple[float, ...] = TEMPERATURES


class GreedyDraft(DraftModel):
    """Drafts its best tokens, whatever the request's temperature."""

    def _choose(self, guesses: list[Guess], logits: Tensor) -> Tensor:
        return logits.argmax(dim=1)


def run_sampling_bench(bench: SamplingBench) -> dict[str, Any]:
    """Rows for the target with a part of itself, and for the pair of the configuration."""
    config = bench.config
    target = load_model(config.target, device=config.device, dtype=config.dtype)
    part = leave_one_out(load_model(config.target, device=config.device, dtype=config.drafter_dtype))
    rows = _measure(bench, "itself without a layer", target, part, (OWN_LUCK, GREEDY, REJECTION))
    if config.drafter != "none":
        drafter = load_model(config.drafter, device=config.device, dtype=config.drafter_dtype)
        rows += _measure(bench, "of the pair", target, drafter, (OWN_LUCK, GREEDY))
    facts = {"prompts": len(bench.prompts), "tokens": bench.tokens, "drafted": bench.drafted, "dtype": config.dtype}
    return {**facts, "rows": rows}


def leave_one_out(model: LanguageModel) -> LanguageModel:
    """The same model without its last layer but one, in place: the one it misses least. Raises ConfigError where the
    layers can't be told.
    """
    network: Any = model.network
    blocks = getattr(network, "blocks", None)
    if not isinstance(blocks, nn.ModuleList) or len(blocks) < 2:
        raise ConfigError(f"{model.spec.name} has no layers that can be told apart: take a target of Llama's kind.")
    network.blocks = nn.ModuleList([*blocks[:-2], blocks[-1]])
    return model


def _measure(
    bench: SamplingBench, drafter_name: str, target: LanguageModel, drafter: LanguageModel, ways: Sequence[str]
) -> list[dict[str, Any]]:
    for model in (target, drafter):
        model.allocate(2, CONTEXT)
    rows = []
    for temperature in bench.temperatures:
        done: dict[str, list[tuple[Stats, float]]] = {way: [] for way in (PLAIN, *ways)}
        for seed, prompt in enumerate(bench.prompts):
            request = CompletionRequest(
                prefix=prompt.prefix, max_tokens=bench.tokens, temperature=temperature, seed=seed
            )
            for way, found in done.items():
                found.append(_complete(bench, way, target, drafter, request))
        rows += [_row(drafter_name, temperature, way, done) for way in ways]
    return rows


def _complete(
    bench: SamplingBench, way: str, target: LanguageModel, drafter: LanguageModel, request: CompletionRequest
) -> tuple[Stats, float]:
    """What one completion did, and its seconds a token without the reading of the prompt."""
    kind: Callable[..., DraftModel] = GreedyDraft if way == GREEDY else DraftModel
    proposer = kind(drafter, CONTEXT - 1, 2, shares_ids_with=target.tokenizer)
    policy = FixedLength(0 if way == PLAIN else bench.drafted)
    engine = Engine(target, proposer, policy, context=CONTEXT, max_batch=1, warmup=0)
    engine.complete([replace(request, max_tokens=1)])  # reads the prompt
    if way == REJECTION:
        request = replace(request, rule="rejection")
    began = time.perf_counter()
    stats = engine.complete([request])[0].stats
    return stats, (time.perf_counter() - began) / max(1, stats.committed)


def _row(
    drafter: str, temperature: float, way: str, done: Mapping[str, Sequence[tuple[Stats, float]]]
) -> dict[str, Any]:
    total, found = Stats(), done[way]
    for stats, _ in found:
        total.add(stats)
    faster = [plain / own for (_, plain), (_, own) in zip(done[PLAIN], found, strict=True)]
    return {
        "drafter": drafter,
        "temperature": temperature,
        "way": way,
        "accepted_per_round": round(total.accepted / max(1, total.rounds), 3),
        "rate": round(total.accepted / max(1, total.drafted), 3),
        "times_plain": round(median(faster), 3),
        "tokens": total.committed,
    }


def report(found: Mapping[str, Any]) -> list[str]:
    """The rows as lines."""
    head = f"{found['prompts']} prompts, up to {found['tokens']} tokens, {found['drafted']} drafted, {found['dtype']}"
    lines = [head, f"{'drafter':24} {'temperature':>11} {'way':>10} {'accepted/round':>15} {'times plain':>12}"]
    for row in found["rows"]:
        ratio = f"{row['accepted_per_round']:15.2f} {row['times_plain']:12.2f}"
        lines.append(f"{row['drafter']:24} {row['temperature']:11} {row['way']:>10} {ratio}")
    return lines
