"""The guides match the code: models by memory, the doctor's own words, and a test for every claimed feature."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from codespec.cli.models import overview
from codespec.store.catalogue import OWN_DRAFTERS, read_advice, read_catalogue
from codespec.store.disk import written

ROOT = Path(__file__).resolve().parents[2]
LINKED = re.compile(r"\[([^\]]+)\]\(\.\./\.\./((?:tests|lab/tests|editors)/[^)#]+)\)")
STATES = ("yes", "no", "partly")


def table(page: str, columns: int) -> list[list[str]]:
    """Return the rows, headers included, of a page's tables with this many columns."""
    rows = [line.split("|")[1:-1] for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    return [[cell.strip() for cell in row] for row in rows if len(row) == columns]


def test_models_by_memory_are_those_that_the_catalogue_recommends() -> None:
    listed = {row[0]: row for row in table("docs/quickstart.md", 6) if row[1].startswith("`")}
    advised = {f"{advice.gigabytes} GB": advice.target for advice in read_advice()}
    assert {gigabytes: row[1].strip("`") for gigabytes, row in listed.items() if gigabytes in advised} == advised
    assert len(listed) == len(advised)


def test_models_need_and_cost_what_the_catalogue_says() -> None:
    rows = {row["name"]: row for row in overview()["models"] if "memory" in row}
    for _, name, download, memory, drafter, licence in table("docs/quickstart.md", 6):
        if name.startswith("`"):
            known, entry = rows[name.strip("`")], read_catalogue()[name.strip("`")]
            assert (download, memory) == (written(known["download"]), written(known["memory"])), name
            assert drafter.strip("`") == ("ships" if entry.drafter in OWN_DRAFTERS else entry.drafter), name
            assert licence == entry.licence


def test_what_doctor_is_quoted_with_it_says() -> None:
    """A quotation that no check contains is one that the doctor never prints."""
    checks = [*(ROOT / "codespec/cli").glob("*_checks.py"), ROOT / "codespec/pair.py"]
    message = "".join(path.read_text(encoding="utf-8") for path in checks)
    quoted = [row[1] for row in table("docs/troubleshooting.md", 3) if row[0].startswith("`")]
    assert len(quoted) >= 15
    assert not [each for each in quoted if each.strip("`") not in message]


def expectations() -> list[list[str]]:
    """Return each expectation, its source, whether codespec meets it, and the evidence."""
    return [row for row in table("docs/checks/expectations.md", 4) if row[2].partition(":")[0] in STATES]


def test_the_last_line_counts_right() -> None:
    answers = [row[2].partition(":")[0] for row in expectations()]
    counts = [answers.count(state) for state in ("yes", "partly", "no")]
    page = (ROOT / "docs/checks/expectations.md").read_text(encoding="utf-8")
    assert [int(each) for each in re.findall(r"\d+", page.splitlines()[-1])] == counts


def test_there_are_sixty_expectations_and_not_all_are_met() -> None:
    rows = expectations()
    assert len(rows) == 60 and len({row[0] for row in rows}) == 60
    assert any(row[2].startswith("no") for row in rows), "nobody believes a table of yes alone"


@pytest.mark.parametrize("row", expectations(), ids=lambda row: row[0][:60])
def test_a_test_stands_behind_every_yes(row: list[str]) -> None:
    shown = LINKED.findall(row[3])
    assert shown or row[2].startswith("no"), "a yes without a test"
    for name, path in shown:
        file = ROOT / path
        assert file.is_file(), path
        begins = f"def {name}(" if path.endswith(".py") else f'test("{name}'
        assert begins in file.read_text(encoding="utf-8"), name
