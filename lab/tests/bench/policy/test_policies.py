"""Folds keep projects apart: no policy learns from the project on which it is tested. A user's policy is a file."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest
from codespec_lab.bench.policy import policies
from codespec_lab.bench.policy.policies import FOLDS, by_file, by_fold, learned_elsewhere, own_row
from codespec_lab.bench.policy.recording import Recording
from codespec_lab.bench.sites import Site
from codespec_lab.bench.steps import Prices
from hypothesis import given
from hypothesis import strategies as st

from codespec.errors import ConfigError
from codespec.speculation import policy as documented
from lab.tests.bench.policy.tiny import pair, real_rounds, recordings, replayed, rounds_of
from tests.speculation.sequences import table

NAMES = st.lists(st.tuples(st.sampled_from("abcdefg"), st.sampled_from("xyz")), min_size=1, max_size=40)


def made(names: Sequence[tuple[str, str]]) -> list[Recording]:
    sites = [Site("", path=path, language="python", project=project) for project, path in names]
    return [Recording(site, site.request(1)) for site in sites]


@given(NAMES)
def test_folds_hold_whole_projects(names: list[tuple[str, str]]) -> None:
    found = made(names)
    folds = by_fold(found)
    assert (
        sorted(id(recording) for fold in folds for recording in fold) == sorted(map(id, found)) and len(folds) <= FOLDS
    )
    projects = [{recording.site.project for recording in fold} for fold in folds]
    assert sum(map(len, projects)) == len(set.union(*projects))


@given(NAMES)
def test_files_are_kept_together(names: list[tuple[str, str]]) -> None:
    groups = by_file(made(names))
    assert len(groups) == len(set(names)) and sum(map(len, groups)) == len(names)


def test_nothing_is_learned_from_a_project_itself() -> None:
    seen: list[set[str]] = []
    real = policies.replay

    def spy(pair_: object, groups: object) -> object:
        (policy, found) = groups[0]  # type: ignore[index]
        seen.append({recording.site.project for recording in found})
        return real(pair_, [(policy, found)])  # type: ignore[arg-type]

    with mock.patch.object(policies, "replay", spy):
        learned = learned_elsewhere(pair("bytes"), Prices(table(0.05, 0.02)), recordings("bytes"), syntax=True)
    projects = {recording.site.project for recording in recordings("bytes")}
    assert set(learned) == projects and len(seen) == 3
    assert all(len(projects - others) == 1 for others in seen) and all(known["counters"] for known in learned.values())


def test_the_documented_example_is_a_policy(tmp_path: Path) -> None:
    """The module's docstring has a whole file: it drafts, learns from its results, and changes no text."""
    lines = inspect.getdoc(documented).split("\n\n", 1)[1].split("`codespec bench")[0]  # type: ignore[union-attr]
    file = tmp_path / "wide.py"
    file.write_text(inspect.cleandoc(lines), encoding="utf-8")
    row = own_row(file)
    assert row.name == "own wide" and len(lines.split("\n")) <= 16
    rounds = [rounds_of(replayed("bytes", row.make([])), recording) for recording in recordings("bytes")]
    assert rounds == real_rounds("bytes", row.make([]))
    assert len({drafted for own in rounds for _, drafted, _ in own}) > 3


@pytest.mark.parametrize(
    ("text", "message"),
    [("class Broken(", "can't be run"), ("x = 1", "defines 0 subclasses"), (None, "can't be run")],
)
def test_a_file_without_a_policy_is_refused(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "own.py").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        own_row(tmp_path / "own.py")
