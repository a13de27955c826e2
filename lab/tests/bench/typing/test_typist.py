"""A typist's keys and sites."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, pstdev

import pytest
from codespec_lab.bench.typing import typist
from codespec_lab.bench.typing.typist import MAX_PAUSE, MEAN, SPREAD, first_line, keystrokes, position, shown_text
from codespec_lab.bench.typing_sites import LINES, TypingSite, typing_sites
from codespec_lab.corpus.documents import Document, write_documents
from hypothesis import given
from hypothesis import strategies as st

from codespec.errors import ConfigError

CODE = "def total_area(circles):\n    areas = [circle.area() for circle in circles]\n    return sum(areas)\n" * 40


@given(st.text(), st.integers(), st.floats(0.1, 10.0))
def test_what_is_typed_is_the_text(text: str, seed: int, pace: float) -> None:
    keys = keystrokes(text, seed, pace)
    assert "".join(key.text for key in keys) == text
    assert all(before.end == key.start for before, key in pairwise(keys)) and (not keys or keys[0].start == 0)
    assert all(key.text and key.wait > 0.0 for key in keys)
    assert keys == keystrokes(text, seed, pace)


@given(st.text(max_size=50), st.integers(), st.floats(1.1, 9.0))
def test_pace(text: str, seed: int, pace: float) -> None:
    slow, fast = keystrokes(text, seed), keystrokes(text, seed, pace)
    assert [key.wait for key in fast] == pytest.approx([key.wait / pace for key in slow])


def test_an_editor_indents() -> None:
    assert [key.text for key in keystrokes("a:\n    b\n\n\tc", 0)] == ["a", ":", "\n    ", "b", "\n", "\n\t", "c"]


def test_times_are_the_published_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typist, "WORD_PAUSES", 0.0)
    monkeypatch.setattr(typist, "LINE_PAUSE", 0.0)
    waits = [key.wait for key in keystrokes(CODE, 1)]
    assert fmean(waits) == pytest.approx(MEAN, rel=0.05)
    assert pstdev(waits) / fmean(waits) == pytest.approx(SPREAD, rel=0.25)  # kinds of keys differ as well


def test_keys_come_in_bursts() -> None:
    keys = keystrokes(CODE, 2)
    lines = [key.wait for before, key in pairwise(keys) if before.text.startswith("\n")]
    usual = median(key.wait for key in keys)
    assert median(lines) > 3 * usual and max(key.wait for key in keys) < MAX_PAUSE + 10 * MEAN
    assert 0.0 < sum(key.wait > 4 * usual for key in keys) / len(keys) < 0.15


SITE = TypingSite("p/a.py", "python", "x = 1\n    ab = cd\n    e\ny = 2\n", 10, 23)


def test_a_site() -> None:
    assert SITE.typed == "ab = cd\n    e" and SITE.after(13) == SITE.text
    assert SITE.after(2) == "x = 1\n    ab\ny = 2\n" and SITE.uri == "file:///typed/p/a.py"
    assert position(SITE, 0) == {"line": 1, "character": 4} and position(SITE, 12) == {"line": 2, "character": 4}
    item = {"insertText": "    ab = cd", "range": {"start": {"line": 1, "character": 0}}}
    assert shown_text(item, position(SITE, 2)) == " = cd"
    assert [first_line(text) for text in ("a\nb", "\n  a\nb", "a", "")] == ["a", "\n  a", "a", ""]


def test_sites_are_code_in_the_middle_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespec_lab.corpus.held_out.held_out_files", list)
    body = "def area{}(width):\n    # twice\n    half = width * width\n    result = half + half\n    return result\n\n"
    files = [Document(f"p{n}", "a.py", "python", "".join(body.format(f"{n}_{i}") for i in range(20))) for n in range(9)]
    write_documents(tmp_path / "held_out.jsonl.gz", [*files, Document("short", "b.py", "python", "x = 1\n")])
    sites, _ = typing_sites(tmp_path / "held_out.jsonl.gz", None, 4)
    assert len({site.name for site in sites}) == 4
    for site in sites:
        assert site.typed.count("\n") == LINES - 1 and site.typed.startswith("half") and "#" not in site.typed
        assert len(site.text) * 0.4 < site.begin < site.end < len(site.text)


def test_the_last_lines_of_prompts(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a\\nb = 1\\nc = 2\\nd =", "suffix": "\\ne"}\n{"prompt": "too short"}\n')
    (site,), _ = typing_sites(None, file, 5)
    assert site.typed == "b = 1\nc = 2\nd =" and site.after(0) == "a\n\ne" and site.text.endswith("d =\ne")
    file.write_text('{"prompt": "too short"}\n')
    with pytest.raises(ConfigError, match="no site to type at"):
        typing_sites(None, file, 5)
