"""Tables and phrases of the benchmarks' reports, and bar charts as SVG, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from codespec.errors import ConfigError

WIDTH, LABEL, NOTE, BAR, GAP = 760, 190, 150, 16, 7
LETTER = 6.6  # mean width of a letter in a note, in pixels
HEAD, FOOT, MARGIN = 46, 26, 20
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-weight: 600; font-size: 14px } .note { fill: #57606a }
.bar { fill: #4c8dd6 } .best { fill: #2f9e63 } .plain { fill: #9aa4af }
.whisker, .line { stroke: #57606a; stroke-width: 1.2 } .line { stroke-dasharray: 3 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .note { fill: #9aa4af } .bar { fill: #5a9ce6 } .best { fill: #46b97c } .plain { fill: #6e7681 }
  .whisker, .line { stroke: #9aa4af }
}
"""


def table(rows: Sequence[Sequence[object]], *, left: int = 1) -> list[str]:
    """Return rows of cells as lines with aligned columns: the first `left` to the left, the others to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    form = "  ".join(f"{{:{'<' if number < left else '>'}{width}}}" for number, width in enumerate(widths))
    return [form.format(*row).rstrip() for row in cells]


def format_ratio(values: Mapping[str, Any] | None, digits: int = 3, nothing: str = "") -> str:
    """Format a ratio and its interval: 1.214 (1.180–1.251)."""
    if values is None:
        return nothing
    return f"{values['ratio']:.{digits}f} ({values['low']:.{digits}f}–{values['high']:.{digits}f})"


def format_percentiles(values: Mapping[str, float]) -> str:
    """Format the 50th, 95th and 99th percentile; "none" if there are no values."""
    return " ".join(f"{value:.1f}" if value < 100 else f"{value:.0f}" for value in values.values()) or "none"


def format_load(machine: Mapping[str, Any]) -> str:
    """Format the number of cores, and the load before and after the run."""
    return f"{machine['cores']} cores, load " + " to ".join(f"{value:.1f}" for value in machine["load"])


def bounds(interval: Mapping[str, float]) -> tuple[float, float]:
    """Return an interval's ends, for a chart."""
    return interval["low"], interval["high"]


def size_of(shape: str) -> str:
    """Return the target's size in a sentence: "target as large as …"."""
    return "it is" if shape == "own" else f"{shape} (simulated)"


def section_title(size: str) -> str:
    """Return the line above a section about a target of that size."""
    return f"── target as large as {size} " + "─" * 40


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; `kind` is bar, best or plain; an interval is drawn as a whisker."""

    label: str
    value: float
    kind: str = "bar"
    interval: tuple[float, float] | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars under a title; `line` marks a value of interest."""

    title: str
    note: str
    bars: Sequence[Bar]
    line: float | None = None

    @property
    def height(self) -> int:
        """Return the height in pixels."""
        return HEAD + FOOT + len(self.bars) * (BAR + GAP)


def draw(charts: Sequence[Chart]) -> str:
    """Return all charts, one below another, in one SVG document."""
    top, parts = MARGIN, []
    for chart in charts:
        parts.append(f'<g transform="translate(0 {top})">{_chart(chart)}</g>')
        top += chart.height + MARGIN
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}">\n'
        f"<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


def write_plot(file: Path, charts: Sequence[Chart]) -> None:
    """Draw the charts into a file. Raise ConfigError if it can't be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(draw(charts), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"The plot {file} can't be written ({error.strerror}): choose another place.") from error


def _chart(chart: Chart) -> str:
    most = max([1e-9, *(max((bar.value, *(bar.interval or ()))) for bar in chart.bars)])
    longest = max((len(bar.note) for bar in chart.bars), default=0)
    scale = (WIDTH - LABEL - max(NOTE, 12 + LETTER * longest)) / most
    parts = [_text(0, 14, chart.title, "title"), _text(0, 32, chart.note, "note")]
    bottom = HEAD + len(chart.bars) * (BAR + GAP)
    if chart.line is not None:
        x = LABEL + chart.line * scale
        parts.append(f'<line class="line" x1="{x:.1f}" x2="{x:.1f}" y1="{HEAD - 6}" y2="{bottom}"/>')
    parts += [_bar(bar, HEAD + place * (BAR + GAP), scale) for place, bar in enumerate(chart.bars)]
    return "".join(parts)


def _bar(bar: Bar, y: int, scale: float) -> str:
    middle, width = y + BAR / 2, max(0.0, bar.value) * scale
    end = LABEL + width
    parts = [
        _text(LABEL - 8, middle + 4, bar.label, "label", anchor="end"),
        f'<rect class="{bar.kind}" x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>',
    ]
    if bar.interval:
        low, high = (LABEL + value * scale for value in bar.interval)
        end = max(end, high)
        parts.append(f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>')
    parts.append(_text(end + 6, middle + 4, bar.note or f"{bar.value:.2f}", "note"))
    return "".join(parts)


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
