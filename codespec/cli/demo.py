"""`make demo`: the real thing end to end on the shipped pair. Completes held-out code with drafted and accepted text
told apart, then measures the speed-up over the fastest plain decoding. Knows the engine's public face only.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from codespec.bench.prompts import BenchPrompt, stdlib_prompts
from codespec.cli.ending import run_to_exit_code
from codespec.cli.options import require_torch
from codespec.cli.paint import Painter
from codespec.types import CompletionRequest, DoneEvent, RoundEvent, Stats

if TYPE_CHECKING:
    from codespec.engine.engine import Engine

SHOWN, MEASURED, TOKENS = 4, 12, 64
DTYPES = ("float32", "bfloat16")


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

    engines = {dtype: Engine.load(dtype=dtype) for dtype in DTYPES}
    for note in dict.fromkeys(note for engine in engines.values() for note in engine.notes):
        print(f"codespec: {note}", file=sys.stderr)
    prompts = stdlib_prompts(MEASURED)
    show(engines["float32"], prompts[:: max(1, len(prompts) // SHOWN)][:SHOWN])
    print("Measuring the same prompts plain and with speculation (one thread, in turn) …", flush=True)
    for engine in engines.values():
        run(engine, prompts[0], speculate=True)
        run(engine, prompts[0], speculate=False)
    report(engines, prompts)
    return 0


def show(engine: Engine, prompts: Sequence[BenchPrompt]) -> None:
    """Completions as an editor would ask for them, with who wrote what."""
    painter = Painter(sys.stdout, colour=sys.stdout.isatty())
    print("green or [brackets]: guessed and accepted; red or -dashes-: guessed and rejected; plain: the target's own\n")
    for prompt in prompts:
        print(f"── {prompt.path} " + "─" * max(0, 60 - len(prompt.path)))
        print("\n".join(prompt.prefix.splitlines()[-4:]), end="")
        painter.plain("⟨")
        for event in engine.stream(_request(prompt, shape="auto", heal=True)):
            if isinstance(event, RoundEvent):
                painter.round(event)
            elif isinstance(event, DoneEvent):
                painter.plain("⟩\n")
                painter.summary(event.completion)
        print()


def report(engines: dict[str, Engine], prompts: Sequence[BenchPrompt]) -> None:
    """Times every prompt in every configuration in turn; prints medians and ratios."""
    runs: dict[tuple[str, bool], list[Run]] = {(d, on): [] for d in engines for on in (False, True)}
    for prompt in prompts:
        for (dtype, on), results in runs.items():
            results.append(run(engines[dtype], prompt, speculate=on))
    speeds = {key: sum(r.tokens for r in rs) / sum(r.seconds for r in rs) for key, rs in runs.items()}
    fastest = {on: max((d for d in engines), key=lambda d: speeds[d, on]) for on in (False, True)}
    plain, sped = runs[fastest[False], False], runs[fastest[True], True]
    ratios = [(a.seconds / a.tokens) / (b.seconds / b.tokens) for a, b in zip(plain, sped, strict=True)]
    same = sum(a.ids == b.ids for d in engines for a, b in zip(runs[d, False], runs[d, True], strict=True))
    total = Stats()
    for result in sped:
        total.add(result.stats)
    rate_off, rate_on = speeds[fastest[False], False], speeds[fastest[True], True]
    print(f"plain:       {rate_off:7.1f} tokens/s  (fastest of {', '.join(engines)}: {fastest[False]})")
    print(f"speculation: {rate_on:7.1f} tokens/s  ({fastest[True]})")
    spread = f"median of {len(ratios)} prompts; min {min(ratios):.2f}, max {max(ratios):.2f}"
    print(f"speed-up: {statistics.median(ratios):.2f} × ({spread})")
    print(f"same text as plain: {same} of {len(engines) * len(prompts)}")
    a_round = total.committed / total.rounds
    print(f"accepted {total.accepted} of {total.drafted} drafted tokens; {a_round:.2f} tokens a round")
    busy = total.draft_ms + total.retokenize_ms + total.verify_ms + total.prefill_ms + total.other_ms
    parts = {"draft": total.draft_ms, "retokenize": total.retokenize_ms, "verify": total.verify_ms}
    parts |= {"prefill": total.prefill_ms, "rest": total.other_ms}
    print("time with speculation: " + ", ".join(f"{name} {100 * ms / busy:.0f} %" for name, ms in parts.items()))


def run(engine: Engine, prompt: BenchPrompt, *, speculate: bool) -> Run:
    """One completion of TOKENS tokens, raw."""
    start = time.perf_counter()
    done = engine.complete([_request(prompt, shape="raw", speculate=speculate)])[0]
    return Run(time.perf_counter() - start, max(1, len(done.token_ids)), done.token_ids, done.stats)


def _request(prompt: BenchPrompt, shape: str, heal: bool = False, speculate: bool | None = None) -> CompletionRequest:
    raw = shape == "raw"
    return CompletionRequest(
        prefix=prompt.prefix,
        suffix="" if raw else prompt.suffix,
        path=prompt.path,
        max_tokens=TOKENS,
        shape="raw" if raw else "auto",
        heal=heal,
        speculate=speculate,
    )


if __name__ == "__main__":
    sys.exit(main())
