"""The charts are well-formed SVG, whatever the labels and numbers are."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from codespec_lab.bench.report import BAR, Bar, Chart, draw, write_plot
from hypothesis import given
from hypothesis import strategies as st

from codespec.errors import ConfigError

SVG = "{http://www.w3.org/2000/svg}"
LABELS = st.text(st.characters(codec="utf-8", exclude_categories=("C",)), max_size=12)
BARS = st.builds(Bar, LABELS, st.floats(0, 1e6), interval=st.none() | st.just((0.5, 2.0)))


@given(st.lists(st.builds(Chart, LABELS, LABELS, st.lists(BARS, max_size=4), st.none() | st.just(1.0)), max_size=3))
def test_any_chart_is_well_formed(charts: list[Chart]) -> None:
    root = ElementTree.fromstring(draw(charts))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    bars = root.findall(f".//{SVG}rect")
    assert len(bars) == sum(len(chart.bars) for chart in charts)
    for bar in bars:
        assert float(bar.attrib["x"]) + float(bar.attrib["width"]) <= width
        assert float(bar.attrib["y"]) + BAR <= height


def test_longer_bars_are_larger_numbers_and_both_themes_are_there() -> None:
    text = draw([Chart("a < b", "n", [Bar("one", 1.0), Bar("two", 2.0, "best", (1.5, 2.5))], line=1.0)])
    root = ElementTree.fromstring(text)
    one, two = (float(bar.attrib["width"]) for bar in root.iter(f"{SVG}rect"))
    assert two == pytest.approx(2 * one, rel=0.01) and "prefers-color-scheme: dark" in text
    assert "a &lt; b" in text and len(list(root.iter(f"{SVG}line"))) == 2


def test_a_long_note_has_room() -> None:
    note = "1.38 (13.3 rejected, 12.4 missed a round)"
    root = ElementTree.fromstring(draw([Chart("a", "b", [Bar("one", 2.0, note=note), Bar("two", 1.0)])]))
    (text,) = [found for found in root.iter(f"{SVG}text") if found.text == note]
    assert float(text.attrib["x"]) + 6 * len(note) <= float(root.attrib["width"])


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="can't be written"):
        write_plot(tmp_path / "file" / "plot.svg", [])
