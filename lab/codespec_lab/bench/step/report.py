"""Format the figures of `codespec bench step` as tables and charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from codespec_lab.bench.plot import Bar, Chart


def report(found: Mapping[str, Any]) -> list[str]:
    """Return the rows as lines, the drafter's step last. Older files lack modes, prompts or the processor."""
    compared = any("over_fast" in row for row in found["rows"])
    header = f"{'dtype':9} {'context':>7} {'batch':>5} {'width':>5} {'ms':>9} {'of one row':>10} {'of bandwidth':>12}"
    lines = [
        f"{found['shape']}, {found.get('weights', 'random')} weights, {found['device']}, {found['threads']} thread(s), "
        f"{found['mode']}; measured bandwidth {found['bandwidth_gb']} GB/s",
        *([found["processor"]] if "processor" in found else []),
        *(_calls(dtype, calls) for dtype, calls in found.get("calls", {}).items() if "fast" in calls),
        f"{header}  exact over fast" if compared else header,
    ]
    for row in found["rows"]:
        sizes = f"{row['dtype']:9} {row['context']:7} {row['batch']:5} {row['width']:5}"
        line = f"{sizes} {row['ms']:9.2f} {row['over_one']:10.2f} {row['of_bandwidth']:12.0%}"
        lines.append(f"{line}  {_over_fast(row)}" if compared else line)
    lines += [_prompt(row) for row in found.get("prompts", ())]
    return [*lines, f"a step of the drafter ({found['drafter']['name']}): {found['drafter']['ms']} ms", *found["notes"]]


def _calls(dtype: str, calls: Mapping[str, Any]) -> str:
    """Return the call shapes of a number format, and how they were found."""
    if "exact" not in calls:
        return f"{dtype}: fast only: {calls['fast']}"
    took = f"found in {calls['search_s']:.1f} s, tried again in {calls['later_s']:.1f} s on a later start"
    return f"{dtype}: exact: {calls['exact']} ({calls['tried']}; {took}); fast: {calls['fast']}"


def _prompt(row: Mapping[str, Any]) -> str:
    how = "in one forward" if row["chunk"] == row["rows"] else f"in chunks of {row['chunk']}"
    over = f", exact over fast {_over_fast(row)}" if "over_fast" in row else ""
    return f"a prompt of {row['rows']} tokens {how}, {row['dtype']}: {row['ms']:.0f} ms{over}"


def _over_fast(row: Mapping[str, Any]) -> str:
    """Return the median of the sweeps' ratios with their range."""
    if "over_fast" not in row:
        return "-"
    low, high = row["over_fast_range"]
    return f"{row['over_fast']:.2f} ({low:.2f}–{high:.2f})"


def charts(found: Mapping[str, Any]) -> list[Chart]:
    """Return, for every format, charts of the share of the bandwidth and of the cost of several rows over one."""
    note = f"{found['device']}, {found['threads']} thread(s), {found['mode']}, {found['bandwidth_gb']} GB/s"
    return [
        chart
        for dtype in dict.fromkeys(row["dtype"] for row in found["rows"])
        for chart in (_shares(found, dtype, note), _verify(found, dtype, note))
    ]


def _shares(found: Mapping[str, Any], dtype: str, note: str) -> Chart:
    rows = [row for row in _of(found, dtype) if row["width"] == 1]
    bars = [Bar(f"batch {r['batch']}, {r['context']} tokens", r["of_bandwidth"], "best") for r in rows]
    return Chart(f"{found['shape']} {dtype}: one row each, share of the bandwidth", note, bars, line=1.0)


def _verify(found: Mapping[str, Any], dtype: str, note: str) -> Chart:
    rows = [row for row in _of(found, dtype) if row["batch"] == 1]
    bars = [Bar(f"{r['width']} rows, {r['context']} tokens", r["over_one"]) for r in rows]
    return Chart(f"{found['shape']} {dtype}: time of a verify over one row's", note, bars, line=1.0)


def _of(found: Mapping[str, Any], dtype: str) -> Sequence[Mapping[str, Any]]:
    return [row for row in found["rows"] if row["dtype"] == dtype]
