"""From replies to figures: throughput, waiting times, what guessing brought, what a keystroke costs. Numbers only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from codespec.bench.bootstrap import ratio_interval
from codespec.bench.serve_client import PHASES, Pass, Reply

PERCENTILES = (50, 95, 99)
COUNTED = ("prompt_tokens", "cached_tokens", "rounds", "drafted", "accepted", "committed")
NOISE = 0.02  # a ratio is no loss while its interval reaches this near to 1


@dataclass(slots=True)
class Cell:
    """Passes over the same places at one concurrency, speculation off and on in turn; `texts` is what was first written
    at each place, at any concurrency.
    """

    concurrency: int
    texts: dict[int, str]
    off: list[tuple[Sequence[int], Pass]] = field(default_factory=list)  # which places, and what came
    on: list[tuple[Sequence[int], Pass]] = field(default_factory=list)

    def add(self, speculate: bool, places: Sequence[int], done: Pass) -> None:
        """Takes in one pass."""
        (self.on if speculate else self.off).append((places, done))
        for place, reply in zip(places, done.replies, strict=True):
            self.texts.setdefault(place, reply.text)

    def as_dict(self) -> dict[str, Any]:
        """Both sides and how they compare, as plain JSON values.

        With so many requests always under way, throughput goes as one over the mean time of a request (Little's law),
        so `faster` and its interval are of times, paired by place, and `throughput` is the clock's own word.
        """
        faster = ratio_interval(_seconds(self.off), _seconds(self.on))
        assert faster is not None, "a reply took no time"
        off, on = _side(self.off), _side(self.on)
        same = [text == self.texts[place] for place, text in self._texts()]
        return {
            "concurrency": self.concurrency,
            "off": off,
            "on": on,
            "throughput": on["tokens_per_second"] / off["tokens_per_second"],
            "faster": faster.as_dict(),
            "no_loss": faster.high >= 1.0 - NOISE,
            "texts": len(same),
            "texts_alike": sum(same),
        }

    def replies(self, speculate: bool) -> list[Reply]:
        """Everything of one side."""
        return [reply for _, done in (self.on if speculate else self.off) for reply in done.replies]

    def _texts(self) -> list[tuple[int, str]]:
        return [
            (place, reply.text)
            for places, done in (*self.off, *self.on)
            for place, reply in zip(places, done.replies, strict=True)
        ]


def mismatches(daemons: Mapping[str, Any]) -> list[str]:
    """Where a place has two texts although its daemon began in exact mode, or that it left the mode, for it compares
    texts itself.
    """
    found = []
    for shape, section in daemons.items():
        if section["daemon"]["mode"] != "exact":
            continue
        for cell in section["cells"]:
            others = cell["texts"] - cell["texts_alike"]
            where = f"{others} of {cell['texts']} texts, {cell['concurrency']} at once, {shape}"
            found += [where] if others else []
        found += [f"the daemon left exact mode, {shape}"] if section["mode_after"] != "exact" else []
    return found


def overhead(replies: Sequence[Reply]) -> dict[str, Any]:
    """Milliseconds that clients waited one at a time: beyond the engine's steps for them, beyond these and the building
    of the prompt (so HTTP, scheduling and what is done between rounds), and on the wire alone.
    """
    return {
        "requests": len(replies),
        "rounds": sum(reply.stats["rounds"] for reply in replies) / max(1, len(replies)),
        "beyond_steps_ms": percentiles([reply.beyond_steps_ms for reply in replies]),
        "beyond_engine_ms": percentiles([reply.beyond_engine_ms for reply in replies]),
        "wire_ms": percentiles([reply.wire_ms for reply in replies]),
    }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99: the smallest value that so many per cent do not exceed."""
    ordered = sorted(values)
    ranks = {percent: max(0, -(-percent * len(ordered) // 100) - 1) for percent in PERCENTILES}
    return {f"p{percent}": ordered[rank] for percent, rank in ranks.items()} if ordered else {}


def keystrokes(sessions: Sequence[Sequence[Reply]]) -> dict[str, Any]:
    """Typing: what was read of the prompts when a file was new (cold) and at the keystrokes behind (warm)."""
    cold = [session[0] for session in sessions]
    warm = [reply for session in sessions for reply in session[1:]]
    asked = sum(reply.stats["drafter_prompt_tokens"] > 0 for reply in warm)
    found = {"documents": len(sessions), "cold": _reading(cold), "warm": _reading(warm), **_times_less(warm)}
    return {**found, "drafter_asked": asked}


def _times_less(warm: Sequence[Reply]) -> dict[str, float]:
    """How many times less was read at a keystroke than its prompts hold, by target and drafter."""
    found = {}
    for name, whole, cached in (
        ("target_reads_less", "prompt_tokens", "cached_tokens"),
        ("drafter_reads_less", "drafter_prompt_tokens", "drafter_cached_tokens"),
    ):
        held = sum(reply.stats[whole] for reply in warm)
        read = held - sum(reply.stats[cached] for reply in warm)
        if held:
            found[name] = held / max(1, read)
    return found


def _reading(replies: Sequence[Reply]) -> dict[str, Any]:
    count = max(1, len(replies))
    return {
        "requests": len(replies),
        "prompt_tokens": sum(reply.stats["prompt_tokens"] for reply in replies) / count,
        "new_tokens": sum(reply.stats["prompt_tokens"] - reply.stats["cached_tokens"] for reply in replies) / count,
        "prefill_ms": percentiles([reply.stats["prefill_ms"] for reply in replies]),
        "first_ms": percentiles([reply.first * 1000 for reply in replies if reply.first is not None]),
    }


def _seconds(passes: Sequence[tuple[Sequence[int], Pass]]) -> list[float]:
    """By place: seconds of all its requests."""
    sums: dict[int, float] = {}
    for places, done in passes:
        for place, reply in zip(places, done.replies, strict=True):
            sums[place] = sums.get(place, 0.0) + reply.total
    return [sums[place] for place in sorted(sums)]


def _side(passes: Sequence[tuple[Sequence[int], Pass]]) -> dict[str, Any]:
    replies = [reply for _, done in passes for reply in done.replies]
    counts = {name: sum(reply.stats[name] for reply in replies) for name in COUNTED}
    return {
        "requests": len(replies),
        "tokens_per_second": counts["committed"] / sum(done.seconds for _, done in passes),
        "first_ms": percentiles([reply.first * 1000 for reply in replies if reply.first is not None]),
        "total_ms": percentiles([reply.total * 1000 for reply in replies]),
        **counts,
        "ms_by_phase": {name: sum(reply.stats[name] for reply in replies) for name in PHASES},
    }
