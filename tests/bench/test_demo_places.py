"""The places of `make demo`: enough of them, the same ones each time, really in files of this checkout."""

from __future__ import annotations

from pathlib import Path

from codespec.bench.demo_places import CHECKOUT, NEAR_CHARS, DemoPlace, find_demo_places

FILE = '''"""Sums."""

import math


def total(values):
    found = 0.0
    for value in values:
        found += math.sqrt(value)
        found *= 1.0 + value
    return found
'''


def test_they_lie_in_this_checkout() -> None:
    places, source = find_demo_places(8)
    assert source == "the project's own tests" and len({place.name for place in places}) == 8
    assert len({place.path for place in places}) == 8, "one a file"
    assert [place.path for place in places] == sorted(place.path for place in places)
    for place in places:
        text = (CHECKOUT / place.path).read_text(encoding="utf-8")
        assert place.path.startswith("tests/") and place.prefix in text and place.suffix in text
        cursor = text.index(place.prefix) + len(place.prefix)
        assert text[:cursor].count("\n") + 1 == place.line
        assert text[cursor : text.index(place.suffix, cursor)].strip(), "something is missing there"


def test_they_are_the_same_each_time() -> None:
    assert find_demo_places(8) == find_demo_places(8)
    assert find_demo_places(12)[0][:8] != find_demo_places(8)[0], "they are spread over all files"


def test_where_no_tests_are_the_standard_library_serves(tmp_path: Path) -> None:
    places, source = find_demo_places(8, tmp_path)
    assert len(places) == 8 and source.startswith("held-out parts of the standard library, since")
    assert all(place.prefix and place.suffix and place.name == place.path for place in places)


def test_a_folder_tests_beside_installed_packages_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "conftest.py").write_text("")
    (tmp_path / "tests" / "test_sums.py").write_text(FILE)
    assert find_demo_places(1, tmp_path)[1] != "the project's own tests"
    (tmp_path / "pyproject.toml").write_text("")
    places, source = find_demo_places(1, tmp_path)
    assert source == "the project's own tests" and places[0].path == "tests/test_sums.py"
    assert places[0].prefix + "…" + places[0].suffix != FILE and FILE.startswith(places[0].prefix)


def test_what_is_near_the_cursor_begins_with_a_line() -> None:
    text = "".join(f"line_{number} = {number}\n" for number in range(100)) + "las"
    near = DemoPlace(text, "", "long.py").near
    assert text.endswith("\n" + near) and NEAR_CHARS - 20 < len(near) < NEAR_CHARS
    assert DemoPlace("x = ", "", "short.py").near == "x = "
    assert DemoPlace("x" * 900, "", "one_line.py").near == "x" * 900
