"""`codespec bench sampling`: three ways to draft for a sampled text, on the same prompts, models and seeds: with the
target's own noise, greedily, and by rejection.

Rejection needs a drafter with the target's vocabulary. The starter pair has two vocabularies, so the target drafts for
itself without one of its layers; the other two ways are also measured with the configured pair. Every way drafts the
same fixed number of tokens, so that acceptance can be compared, and the ways take turns, prompt by prompt. The first
two write the text of plain decoding, which is checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from torch import Tensor, nn

from codespec.contract.types import Completion, CompletionRequest, Stats
from codespec.engine.engine import Engine
from codespec.errors import ConfigError
from codespec.models.language_model import LanguageModel
from codespec.models.loader import load_model
from codespec.proposers.draft_model import DraftModel, Guess
from codespec.speculation.policy import FixedLength
from codespec.startup.calls import choose_calls
from codespec.store.processor import processor
from codespec_lab.bench.harness import Figures, Scenario
from codespec_lab.bench.report import table
from codespec_lab.bench.settings import SamplingBench
from codespec_lab.bench.sites import Site, read_prompts, stdlib_sites

CONTEXT = 1024  # tokens of prompt and completion
OWN_NOISE, GREEDY, REJECTION, PLAIN = "own noise", "greedy", "rejection", "plain"


Timed = tuple[Completion, float]  # a completion and its seconds per token


class GreedyDraft(DraftModel):
    """Drafts the most likely tokens, regardless of the request's temperature."""

    def _choose(self, guesses: list[Guess], logits: Tensor) -> Tensor:
        return logits.argmax(dim=1)


def run_sampling_bench(bench: SamplingBench) -> dict[str, Any]:
    """Return figures for the target with a part of itself, and for the configured pair, as plain JSON values."""
    config = bench.config
    sites = read_prompts(bench.prompts)[: bench.limit] if bench.prompts else stdlib_sites(bench.limit)
    target = load_model(config.target, device=config.device, dtype=config.dtype)
    part = leave_one_out(load_model(config.target, device=config.device, dtype=config.drafter_dtype))
    target.allocate(3, CONTEXT)
    exact = not choose_calls(target, []).variance
    rows = _measure(bench, sites, "itself without a layer", target, part, (OWN_NOISE, GREEDY, REJECTION))
    if config.drafter != "none":
        drafter = load_model(config.drafter, device=config.device, dtype=config.drafter_dtype)
        rows += _measure(bench, sites, "of the pair", target, drafter, (OWN_NOISE, GREEDY))
    return {
        "processor": processor().label,
        "prompts": len(sites),
        "tokens": bench.tokens,
        "drafted": bench.drafted,
        "dtype": config.dtype,
        "exact": exact,
        "rows": rows,
    }


def leave_one_out(model: LanguageModel) -> LanguageModel:
    """Remove, in place, the last layer but one, which matters least, and return the model. Raise ConfigError if the
    layers can't be separated.
    """
    network: Any = model.network
    blocks = getattr(network, "blocks", None)
    if not isinstance(blocks, nn.ModuleList) or len(blocks) < 2:
        raise ConfigError(f"{model.spec.name} has no separate layers: choose a target with Llama's architecture.")
    network.blocks = nn.ModuleList([*blocks[:-2], blocks[-1]])
    return model


def _measure(
    bench: SamplingBench,
    sites: Sequence[Site],
    drafter_name: str,
    target: LanguageModel,
    drafter: LanguageModel,
    ways: Sequence[str],
) -> list[dict[str, Any]]:
    for model in (target, drafter):
        model.allocate(2, CONTEXT)
    rows = []
    for temperature in bench.temperatures:
        done: dict[str, list[Timed]] = {way: [] for way in (PLAIN, *ways)}
        for seed, site in enumerate(sites):
            request = CompletionRequest(prefix=site.prefix, max_tokens=bench.tokens, temperature=temperature, seed=seed)
            for way, found in done.items():
                found.append(_complete(bench, way, target, drafter, request))
        rows += [_row(drafter_name, temperature, way, done) for way in ways]
    return rows


def _complete(
    bench: SamplingBench, way: str, target: LanguageModel, drafter: LanguageModel, request: CompletionRequest
) -> Timed:
    """Return one completion, and its seconds per token without prefill."""
    kind: Callable[..., DraftModel] = GreedyDraft if way == GREEDY else DraftModel
    proposer = kind(drafter, CONTEXT - 1, 2, target=target.tokenizer)
    policy = FixedLength(0 if way == PLAIN else bench.drafted)
    engine = Engine(target, proposer, policy, context=CONTEXT, max_batch=1, warmup=0)
    engine.complete([replace(request, max_tokens=1)])  # prefill
    if way == REJECTION:
        request = replace(request, rule="rejection")
    began = time.perf_counter()
    done = engine.complete([request])[0]
    return done, (time.perf_counter() - began) / max(1, done.stats.committed)


def _row(drafter: str, temperature: float, way: str, done: Mapping[str, Sequence[Timed]]) -> dict[str, Any]:
    total, found = Stats(), done[way]
    for completion, _ in found:
        total.add(completion.stats)
    faster = [plain / own for (_, plain), (_, own) in zip(done[PLAIN], found, strict=True)]
    equal = [own.token_ids == plain.token_ids for (plain, _), (own, _) in zip(done[PLAIN], found, strict=True)]
    return {
        "drafter": drafter,
        "temperature": temperature,
        "way": way,
        "accepted_per_round": round(total.accepted / max(1, total.rounds), 3),
        "rate": round(total.accepted / max(1, total.drafted), 3),
        "times_plain": round(median(faster), 3),
        "tokens": total.committed,
        "equal": None if way == REJECTION else sum(equal),  # rejection keeps the distribution, not the text
    }


def mismatches(found: Figures) -> list[str]:
    """List the rows whose texts differ from plain decoding and must not."""
    return [
        f"{row['way']} at temperature {row['temperature']}, drafter {row['drafter']}: "
        f"{found['prompts'] - row['equal']} of {found['prompts']} texts"
        for row in found["rows"]
        if found["exact"] and row["equal"] is not None and row["equal"] < found["prompts"]
    ]


def report(found: Figures) -> list[str]:
    """Return the rows as lines."""
    head = f"{found['prompts']} prompts, up to {found['tokens']} tokens, {found['drafted']} drafted, {found['dtype']}"
    lines = [head, found["processor"]]
    lines += [] if found["exact"] else ["exact mode does not hold here: fast mode is used, near-ties may differ"]
    rows = [["drafter", "temperature", "way", "accepted/round", "times plain", "equal"]]
    for row in found["rows"]:
        equal = "–" if row["equal"] is None else f"{row['equal']}/{found['prompts']}"
        ratios = [f"{row['accepted_per_round']:.2f}", f"{row['times_plain']:.2f}"]
        rows.append([row["drafter"], row["temperature"], row["way"], *ratios, equal])
    return lines + table(rows)


SCENARIO = Scenario(run_sampling_bench, report, mismatches=mismatches)
