"""Format the figures of `codespec bench typing` as a table, verdicts and charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from codespec_lab.bench.plot import Bar, Chart
from codespec_lab.bench.report import (
    format_load,
    format_percentiles,
    format_ratio,
    section_title,
    size_of,
    verdict_lines,
)
from codespec_lab.bench.typing.summary import OFF, ON, TAKING, both_exact

NAMES = {OFF: "off", ON: "on", TAKING: "on, with Tab"}
LEAST_AS_UNHURRIED, LEAST_AVAILABLE, MOST_OVERHEAD_MS = 0.9, 1.3, 3.0
ENLARGED = "qwen2.5-0.5b"  # the size for which LEAST_AVAILABLE is checked


def report(found: Mapping[str, Any]) -> list[str]:
    """Return the report as lines."""
    lines: list[str] = []
    for shape, section in found["sections"].items():
        if "summary" not in section:
            continue
        machine, settings = section["facts"]["machine"], section["configuration"]
        lines += [section_title(size_of(shape)), ""]
        lines += [f"{settings['dtype']}, pace {settings['pace']:g}; {format_load(machine)}", machine["processor"]]
        lines += [section["note"]] if section["note"] else []
        lines += ["", *_table(section["summary"]["cells"]), *_overhead(section["summary"]["cells"])]
        lines += [*_available(section["summary"]["available"]), *_texts(section.get("texts")), ""]
        lines += [*_verdicts(shape, section["summary"]), ""]
    return lines


def charts(found: Mapping[str, Any]) -> list[Chart]:
    """Return charts of the characters shown 600 ms after a change, and of the time to an answer."""
    drawn = []
    for shape, section in found["sections"].items():
        if "summary" in section:
            drawn += [*_there(shape, section["summary"]), _waits(shape, section["summary"]["cells"])]
    return drawn


def _table(cells: Mapping[str, Any]) -> list[str]:
    rows: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
        ("typed, characters in seconds", lambda c: f"{c['characters']} in {c['seconds']:.0f}"),
        ("put in by Tab", lambda c: f"{c['taken']}"),
        ("questions, superseded", lambda c: f"{c['questions']}, {c['superseded']}"),
        ("change → answer ms at 50, 95, 99 %", lambda c: format_percentiles(c["answer_ms"])),
        ("the same after Tab", lambda c: format_percentiles(c["after_tab_ms"])),
        ("answered without asking, without work", lambda c: f"{c['without_request']:.0%}, {c['without_work']:.0%}"),
        ("answers cut by the clock", lambda c: f"{c['cut']:.1%}"),
        ("right characters shown a question, a second", _right),
        ("tokens written, wasted", lambda c: f"{c['tokens']}, {c['wasted']:.0%}"),
        ("empty answers, of these asked again, not empty", _empty),
        ("something where an unhurried engine has something", lambda c: f"{c['as_unhurried']:.1%}"),
    ]
    lines = [f"{'':50}" + "".join(f"{NAMES[cell]:>20}" for cell in cells)]
    return lines + [f"{name:50}" + "".join(f"{text(cell):>20}" for cell in cells.values()) for name, text in rows]


def _right(cell: Mapping[str, Any]) -> str:
    return f"{cell['matching_per_question']:.2f}, {cell['matching_per_second']:.2f}"


def _empty(cell: Mapping[str, Any]) -> str:
    return f"{cell['empty']}, {cell['asked_again']}, {cell['empty_in_haste_only']}"


def _overhead(cells: Mapping[str, Any]) -> list[str]:
    lines = ["", "the language server's own ms at 50, 95, 99 %:"]
    for cell, values in cells.items():
        own = values["overhead"]
        both, there, back, remembered = (
            format_percentiles(own[name]) for name in ("both", "there", "back", "remembered")
        )
        lines.append(
            f"  {NAMES[cell]}: {both} of {own['questions']} questions (there {there}, back {back}); "
            f"remembered {remembered}"
        )
    return lines


def _available(values: Mapping[str, Any] | None) -> list[str]:
    if values is None:
        return []
    start = (
        f"characters 600 ms after a change, {values['pauses']} pauses: median {values['off']:g} and {values['on']:g}"
    )
    ratios = [
        f"× {format_ratio(ratio, 2)} {name}"
        for name, ratio in (("of the medians", values["median_ratio"]), ("of the sums", values["sum_ratio"]))
        if ratio
    ]
    return ["", f"{start}; {', '.join(ratios)}" if ratios else start]


def _texts(values: Mapping[str, Any] | None) -> list[str]:
    if values is None:
        return []
    same = values["compared"] - len(values["differing"])
    note = "" if both_exact(values) else " (fast mode is used: differences are near-ties)"
    return [f"asked outright, both daemons write the same text at {same} of {values['compared']} places{note}"]


def _verdicts(shape: str, summary: Mapping[str, Any]) -> list[str]:
    cell = summary["cells"].get(ON)
    if cell is None:
        return []
    share, own = cell["as_unhurried"], cell["overhead"]["both"].get("p50")
    verdicts = {}
    if shape == "own":
        verdicts[f"{LEAST_AS_UNHURRIED:.0%} answer where an unhurried engine would"] = share >= LEAST_AS_UNHURRIED
    if own is not None:
        verdicts[f"at most {MOST_OVERHEAD_MS:g} ms of the language server's own at half the questions"] = (
            own <= MOST_OVERHEAD_MS
        )
    if shape == ENLARGED and summary["available"] and summary["available"]["median_ratio"]:
        ratio = summary["available"]["median_ratio"]["ratio"]
        verdicts[f"{LEAST_AVAILABLE:g} times the characters after 600 ms"] = ratio >= LEAST_AVAILABLE
    return verdict_lines(verdicts)


def _there(shape: str, summary: Mapping[str, Any]) -> list[Chart]:
    values = summary["available"]
    if values is None:
        return []
    bars = [Bar(f"{name}, median", values[name], kind) for name, kind in ((OFF, "plain"), (ON, "best"))]
    title = f"Characters shown 600 ms after a change: target as large as {size_of(shape)}"
    return [Chart(title, f"{values['pauses']} pauses, speculation off and on", bars)]


def _waits(shape: str, cells: Mapping[str, Any]) -> Chart:
    bars = [
        Bar(
            NAMES[cell],
            values["answer_ms"]["p50"],
            "plain" if cell == OFF else "best",
            (values["answer_ms"]["p50"], values["answer_ms"]["p95"]),
        )
        for cell, values in cells.items()
        if values["answer_ms"]
    ]
    title = f"From a change to its answer: target as large as {size_of(shape)}"
    return Chart(title, "milliseconds, 50 of them VS Code's own wait; median and 95th percentile", bars)
