"""`make demo`: the real thing end to end on the shipped pair. Completes held-out code with drafted and accepted text
told apart, then measures the speed-up over the fastest plain decoding, and fails where a text differs from it in
`exact` mode. Knows the engine's public face only.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from codespec.bench.mismatch import first_difference, refuse_mismatches
from codespec.bench.prompts import BenchPrompt, stdlib_prompts
from codespec.cli.ending import run_to_exit_code
from codespec.cli.options import require_torch
from codespec.cli.paint import Painter
from codespec.types import CompletionRequest, DoneEvent, RoundEvent, Stats

if TYPE_CHECKING:
    from codespec.engine.engine import Engine

SHOWN, MEASURED, TOKENS = 4, 12, 64
DTYPES = ("float32", "bfloat16")
WARM_UP = BenchPrompt("def first(values):\n    return values[0]\n\n\n" * 8)


@dataclass(frozen=True, slots=True)
class Run:
    """One timed completion."""

    seconds: float
    tokens: int
    ids: tuple[int, ...]
    stats: Stats


def main() -> int:
    """The whole demo; returns the exit code."""
    return run_to_exit_code(demonstrate)


def demonstrate() -> int:
    """Shows, measures, ends."""
    require_torch()
    from codespec.engine.engine import Engine

    shown = Engine.load()
    # An engine a configuration: one that has seen a prompt before would find its prefix and its completion remembered.
    engines = {(dtype, on): Engine.load(dtype=dtype, speculate=on) for dtype in DTYPES for on in (False, True)}
    for note in dict.fromkeys(note for engine in engines.values() for note in engine.notes):
        print(f"codespec: {note}", file=sys.stderr)
    prompts = stdlib_prompts(MEASURED)
    show(shown, prompts[:: max(1, len(prompts) // SHOWN)][:SHOWN])
    import torch

    threads = f"{torch.get_num_threads()} thread(s)"
    print(f"Measuring the same prompts plain and with speculation (in turn, {threads}) …", flush=True)
    for engine in engines.values():
        run(engine, WARM_UP)
    refuse_mismatches(report(engines, prompts))
    return 0


def show(engine: Engine, prompts: Sequence[BenchPrompt]) -> None:
    """Completions as an editor would ask for them, with who wrote what."""
    painter = Painter(sys.stdout, colour=sys.stdout.isatty())
    print("green or [brackets]: guessed and accepted; red or -dashes-: guessed and rejected; plain: the target's own\n")
    for prompt in prompts:
        print(f"── {prompt.path} " + "─" * max(0, 60 - len(prompt.path)))
        print("\n".join(prompt.prefix.splitlines()[-4:]), end="")
        painter.plain("⟨")
        for event in engine.stream(_as_editor(prompt)):
            if isinstance(event, RoundEvent):
                painter.round(event)
            elif isinstance(event, DoneEvent):
                painter.plain("⟩\n")
                painter.summary(event.completion)
        print()


def _as_editor(prompt: BenchPrompt) -> CompletionRequest:
    """Half of the places lie inside a word, where `auto` would not begin."""
    return CompletionRequest(
        prefix=prompt.prefix, suffix=prompt.suffix, path=prompt.path, max_tokens=TOKENS, shape="block", heal=True
    )


def report(engines: dict[tuple[str, bool], Engine], prompts: Sequence[BenchPrompt]) -> list[str]:
    """Times every prompt in every configuration in turn; prints medians and ratios. Returns where a text differs that
    must not.
    """
    runs: dict[tuple[str, bool], list[Run]] = {key: [] for key in engines}
    for prompt in prompts:
        for key, engine in engines.items():
            runs[key].append(run(engine, prompt))
    speeds = {key: sum(r.tokens for r in rs) / sum(r.seconds for r in rs) for key, rs in runs.items()}
    fastest = {on: max(DTYPES, key=lambda d: speeds[d, on]) for on in (False, True)}
    plain, sped = runs[fastest[False], False], runs[fastest[True], True]
    ratios = [(a.seconds / a.tokens) / (b.seconds / b.tokens) for a, b in zip(plain, sped, strict=True)]
    total = Stats()
    for result in sped:
        total.add(result.stats)
    rate_off, rate_on = speeds[fastest[False], False], speeds[fastest[True], True]
    print(f"plain:       {rate_off:7.1f} tokens/s  (fastest of {', '.join(DTYPES)}: {fastest[False]})")
    print(f"speculation: {rate_on:7.1f} tokens/s  ({fastest[True]})")
    spread = f"median of {len(ratios)} prompts; min {min(ratios):.2f}, max {max(ratios):.2f}"
    print(f"speed-up: {statistics.median(ratios):.2f} × ({spread})")
    differing = compare(runs, prompts)
    inexact = [dtype for dtype in DTYPES if not all(engines[dtype, on].target.exact for on in (False, True))]
    note = f" (fast mode is used for {', '.join(inexact)}: there, differences are near-ties)" if inexact else ""
    same = len(DTYPES) * len(prompts) - sum(map(len, differing.values()))
    print(f"same text as plain: {same} of {len(DTYPES) * len(prompts)}{note}")
    a_round = total.committed / total.rounds
    print(f"accepted {total.accepted} of {total.drafted} drafted tokens; {a_round:.2f} tokens a round")
    busy = total.draft_ms + total.retokenize_ms + total.verify_ms + total.prefill_ms + total.other_ms
    parts = {"draft": total.draft_ms, "retokenize": total.retokenize_ms, "verify": total.verify_ms}
    parts |= {"prefill": total.prefill_ms, "rest": total.other_ms}
    print("time with speculation: " + ", ".join(f"{name} {100 * ms / busy:.0f} %" for name, ms in parts.items()))
    return [where for dtype, found in differing.items() if dtype not in inexact for where in found]


def compare(runs: dict[tuple[str, bool], list[Run]], prompts: Sequence[BenchPrompt]) -> dict[str, list[str]]:
    """By number format: where the texts with and without speculation differ."""
    differing: dict[str, list[str]] = {}
    for dtype in DTYPES:
        differing[dtype] = []
        for prompt, plain, sped in zip(prompts, runs[dtype, False], runs[dtype, True], strict=True):
            position = first_difference(sped.ids, plain.ids)
            if position is not None:
                differing[dtype].append(f"{prompt.path}, token {position + 1}, {dtype}")
    return differing


def run(engine: Engine, prompt: BenchPrompt) -> Run:
    """One completion of TOKENS tokens: the prefix alone, and nothing but the target's tokens."""
    start = time.perf_counter()
    done = engine.complete([CompletionRequest(prefix=prompt.prefix, path=prompt.path, max_tokens=TOKENS)])[0]
    return Run(time.perf_counter() - start, max(1, len(done.token_ids)), done.token_ids, done.stats)


if __name__ == "__main__":
    sys.exit(main())
