"""Sites are chosen by rule, are the same each time, and occur in their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from codespec_lab.bench.sites import (
    CHECKOUT,
    NEAR_CHARS,
    SITES_PER_FILE,
    Site,
    demo_sites,
    held_out_sites,
    prompt_sites,
    spread_numbers,
)
from codespec_lab.corpus.documents import Document, write_documents
from hypothesis import given
from hypothesis import strategies as st

from codespec.errors import ConfigError, TrainingError

FILE = '''"""Sums."""

import math


def total(values):
    found = 0.0
    for value in values:
        found += math.sqrt(value)
        found *= 1.0 + value
    return found
'''


@given(st.integers(0, 200), st.integers(1, 60))
def test_numbers_are_spread(total: int, count: int) -> None:
    found = spread_numbers(total, count)
    assert found == sorted(set(found)) and len(found) == min(total, count)
    assert all(0 <= number < total for number in found)


def test_sites_of_a_file_with_projects(tmp_path: Path) -> None:
    text = "".join(f"func Area{i}(width int) int {{\n\tresult := width * {i}\n\treturn result\n}}\n" for i in range(30))
    documents = [Document("p", f"{name}.go", "go", text.replace("Area", name)) for name in ("Disc", "Cube", "Cone")]
    file = tmp_path / "held_out.jsonl.gz"
    write_documents(file, documents)
    sites, note = held_out_sites(file, 4)
    own = [site for site in sites if site.language == "go"]
    assert note == "" and len(own) == 4 and len({site.path for site in own}) == 2 and SITES_PER_FILE == 3
    assert sites == held_out_sites(file, 4)[0]


def test_prompts_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"x = {n}", "path": "a.py"}) + "\n" for n in range(9)))
    found = prompt_sites(file, 3)
    assert [site.prefix for site in found] == ["x = 0", "x = 3", "x = 6"]
    assert {site.language for site in found} == {"python"} and len({site.project for site in found}) == 3
    file.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        prompt_sites(file, 3)


def test_a_missing_file_is_one_sentence() -> None:
    with pytest.raises(TrainingError, match="There is no corpus at"):
        held_out_sites(Path("none.gz"), 3)


def test_demo_sites_lie_in_this_checkout() -> None:
    sites, source = demo_sites(8)
    assert source == "the project's own tests" and len({site.name for site in sites}) == 8
    assert len({site.path for site in sites}) == 8, "one per file"
    assert [site.path for site in sites] == sorted(site.path for site in sites)
    for site in sites:
        text = (CHECKOUT / site.path).read_text(encoding="utf-8")
        assert site.path.startswith("tests/") and site.prefix in text and site.suffix in text
        cursor = text.index(site.prefix) + len(site.prefix)
        assert text[:cursor].count("\n") + 1 == site.line
        assert text[cursor : text.index(site.suffix, cursor)].strip(), "every gap has text"


def test_demo_sites_are_the_same_each_time() -> None:
    assert demo_sites(8) == demo_sites(8)
    assert demo_sites(12)[0][:8] != demo_sites(8)[0], "sites are spread over all files"


def test_where_no_tests_are_the_standard_library_serves(tmp_path: Path) -> None:
    sites, source = demo_sites(8, tmp_path)
    assert len(sites) == 8 and source.startswith("held-out parts of the standard library, since")
    assert all(site.prefix and site.suffix and site.name == site.path for site in sites)


def test_a_folder_tests_beside_installed_packages_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "conftest.py").write_text("")
    (tmp_path / "tests" / "test_sums.py").write_text(FILE)
    assert demo_sites(1, tmp_path)[1] != "the project's own tests"
    (tmp_path / "pyproject.toml").write_text("")
    sites, source = demo_sites(1, tmp_path)
    assert source == "the project's own tests" and sites[0].path == "tests/test_sums.py"
    assert sites[0].prefix + "…" + sites[0].suffix != FILE and FILE.startswith(sites[0].prefix)


def test_what_is_near_the_cursor_begins_with_a_line() -> None:
    text = "".join(f"line_{number} = {number}\n" for number in range(100)) + "las"
    near = Site(text, "", "long.py").near
    assert text.endswith("\n" + near) and NEAR_CHARS - 20 < len(near) < NEAR_CHARS
    assert Site("x = ", "", "short.py").near == "x = "
    assert Site("x" * 900, "", "one_line.py").near == "x" * 900
