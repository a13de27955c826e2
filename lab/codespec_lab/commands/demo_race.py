"""Measurement of `make demo`: codespec with and without speculation against transformers' `generate`.

`generate` runs plain and with prompt lookup; torch is imported only for it. All use the same weights, prompt ids and
end tokens. The report covers speeds and equality of the texts. Every text gets a fresh engine around models that are
loaded once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from codespec.api.config import EngineConfig
from codespec.api.types import CompletionRequest, Stats
from codespec.engine.admission import Admission
from codespec.engine.engine import Engine
from codespec.proposers.base import Proposer
from codespec.proposers.draft_model import DraftModel
from codespec.speculation.policy import DraftPolicy, FixedLength
from codespec.startup.tuning import MAX_CHUNK, choose_policy
from codespec_lab.bench.harness import first_difference
from codespec_lab.bench.pair import Pair

OFF, ON, GENERATE = "codespec off", "codespec on", "transformers"


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text to continue: the request, its prompt ids for the target, and the end tokens."""

    request: CompletionRequest
    ids: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One timed text; `ids` include the end token if the text reached one."""

    seconds: float
    ids: tuple[int, ...]
    stats: Stats | None = None

    @property
    def pace(self) -> float:
        """Seconds per token, prefill included."""
        return self.seconds / max(1, len(self.ids))


class Racer(Protocol):
    """One way to write a text."""

    name: str
    dtype: str
    exact: bool  # whether its text must equal plain decoding's, bit for bit

    def write(self, prompt: Prompt) -> Run:
        """Write one text."""
        ...


class Ours:
    """codespec, with the models of an engine."""

    def __init__(self, engine: Engine, config: EngineConfig, speculate: bool) -> None:
        self.name, self.dtype, self.exact = ON if speculate else OFF, config.dtype, engine.target.exact
        drafter = next((part.model for part in engine.proposers if isinstance(part, DraftModel)), None)
        self._pair = Pair(engine.target, drafter, engine.context, engine.warmup)
        self._wanted = (config.proposers,) if config.proposers != "chain" else self._pair.sources
        self._speculate, self._caps = speculate, config.caps
        self._policy = self._new_policy(config)

    def write(self, prompt: Prompt) -> Run:
        """Write a text with a fresh engine."""
        pair = self._pair
        engine = Engine(
            pair.target,
            self._proposers(),
            self._policy,
            caps=self._caps,
            context=pair.context,
            max_batch=1,
            prefill_chunk=MAX_CHUNK,
            warmup=pair.warmup,
        )
        began = time.perf_counter()
        done = engine.complete([prompt.request])[0]
        return Run(time.perf_counter() - began, done.token_ids, done.stats)

    def _proposers(self) -> list[Proposer]:
        if not self._speculate:
            return []
        return [part for part in self._pair.proposers() if part.name in self._wanted]

    def _new_policy(self, config: EngineConfig) -> DraftPolicy:
        """Return a policy that has not learned from the texts shown before."""
        if not self._speculate:
            return FixedLength(0)
        sources = [part.name for part in self._proposers()]
        return choose_policy(config, sources, self._pair.target, self._pair.drafter, [])


class Theirs:
    """One greedy configuration of `generate`."""

    exact = False

    def __init__(self, name: str, dtype: str, network: Any, **options: Any) -> None:
        self.name, self.dtype = name, dtype
        self._network, self._options = network, options

    def write(self, prompt: Prompt) -> Run:
        """Write a text from the same prompt ids, to the same end tokens."""
        import torch

        from codespec.backends.torch.model_check import quiet

        ids = torch.tensor([prompt.ids], device=self._network.device)
        began = time.perf_counter()
        with quiet(), torch.inference_mode():
            written = self._network.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=prompt.request.max_tokens,
                do_sample=False,
                eos_token_id=list(prompt.ends) or None,
                pad_token_id=0,
                **self._options,
            )
        found = tuple(written[0, ids.shape[1] :].tolist())
        return Run(time.perf_counter() - began, found)


def racers(engine: Engine, config: EngineConfig) -> list[Racer]:
    """Return all racers of one number format.

    transformers loads the target once more, except for native bits, which it cannot compute: its float weights would
    take several gigabytes.
    """
    ours: list[Racer] = [Ours(engine, config, speculate=False), Ours(engine, config, speculate=True)]
    if config.dtype == "native":
        return ours
    from codespec_lab.bench.decode.hugging_face import LOOKUP, LOOKUP_TOKENS, load_network

    network = load_network(config.target, config.dtype).eval().to(engine.target.device)
    return [
        *ours,
        Theirs(GENERATE, config.dtype, network),
        Theirs(LOOKUP, config.dtype, network, prompt_lookup_num_tokens=LOOKUP_TOKENS[0]),
    ]


def read_prompts(engine: Engine, requests: Sequence[CompletionRequest]) -> list[Prompt]:
    """Return the requests as the target reads them."""
    admission = Admission(engine.target, engine.context)
    admitted = [admission.admit(request)[0] for request in requests]
    return [
        Prompt(sequence.request, tuple(sequence.prompt_ids), tuple(sorted(sequence.eos_ids))) for sequence in admitted
    ]


Runs = Mapping[Racer, Sequence[Run]]


def speed_lines(runs: Runs) -> list[str]:
    """Return a line for each name in its fastest number format: tokens per second and speed-up by speculation."""
    fastest = {racer.name: racer for racer in sorted(runs, key=lambda racer: _speed(runs[racer]))}
    on = runs[fastest[ON]]
    lines = [f"{'':28}tokens/s  {'':8}  codespec on is (median of {len(on)} places; min, max)"]
    for name in dict.fromkeys(racer.name for racer in runs):
        racer = fastest[name]
        ratios = "" if name == ON else _ratios(runs[racer], on)
        lines.append(f"{name:28}{_speed(runs[racer]):8.1f}  {racer.dtype:8}  {ratios}".rstrip())
    return lines


def draft_lines(runs: Runs) -> list[str]:
    """Return the draft statistics and the time shares of speculation in its fastest number format."""
    on = max((racer for racer in runs if racer.name == ON), key=lambda racer: _speed(runs[racer]))
    total = Stats()
    for run in runs[on]:
        total.add(run.stats or Stats())
    parts = {"draft": total.draft_ms, "retokenize": total.retokenize_ms, "verify": total.verify_ms}
    parts |= {"prefill": total.prefill_ms, "rest": total.other_ms}
    whole = sum(parts.values())
    return [
        f"accepted {total.accepted} of {total.drafted} drafted tokens; {total.committed / total.rounds:.2f} tokens a "
        "round",
        "time with speculation: " + ", ".join(f"{name} {100 * ms / whole:.0f} %" for name, ms in parts.items()),
    ]


def text_lines(runs: Runs, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Compare the texts: a line for each comparison, and the mismatches that must not occur.

    Compares speculation off and on in every number format. transformers adds up in another order, which shows in all
    formats but float32.
    """
    lines, wrong = [], []
    for racer in (racer for racer in runs if racer.name in (ON, GENERATE)):
        off = next(other for other in runs if (other.name, other.dtype) == (OFF, racer.dtype))
        if racer.name == GENERATE and racer.dtype != "float32":
            continue
        found = _differences(runs[racer], runs[off], names)
        wrong += [f"{where}, {racer.dtype}" for where in found] if off.exact else []
        note = "" if off.exact else " (fast mode is used: differences are near-ties)"
        same = len(names) - len(found)
        lines.append(f"same text, {racer.name} and {OFF}, {racer.dtype}: {same} of {len(names)}{note}")
    theirs = {racer.dtype for racer in runs if racer.name == GENERATE}
    if theirs and "float32" not in theirs:
        lines.append(f"{GENERATE}' texts are compared in float32 only: in other formats it rounds at other places")
    return lines, wrong


def _speed(runs: Sequence[Run]) -> float:
    return sum(len(run.ids) for run in runs) / sum(run.seconds for run in runs)


def _ratios(slow: Sequence[Run], on: Sequence[Run]) -> str:
    ratios = [a.pace / b.pace for a, b in zip(slow, on, strict=True)]
    return f"{statistics.median(ratios):.2f} × as fast ({min(ratios):.2f}, {max(ratios):.2f})"


def _differences(runs: Sequence[Run], plain: Sequence[Run], names: Sequence[str]) -> list[str]:
    positions = [first_difference(a.ids, b.ids) for a, b in zip(runs, plain, strict=True)]
    return [f"{name}, token {at + 1}" for name, at in zip(names, positions, strict=True) if at is not None]
