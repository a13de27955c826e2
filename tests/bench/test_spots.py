"""Places and folds follow rules: nothing of a project is learned from itself, and nobody chooses the places."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.bench import policy_rows
from codespec.bench.policy_rows import FOLDS, by_file, by_fold, learned_elsewhere
from codespec.bench.policy_spots import A_FILE, held_out_spots, prompt_spots, spread_numbers
from codespec.bench.pricing import Prices
from codespec.bench.recording import Recording, Spot
from codespec.corpus.documents import Document, write_documents
from codespec.errors import ConfigError, TrainingError
from tests.bench.tiny import pair, recordings
from tests.speculation.sequences import table

NAMES = st.lists(st.tuples(st.sampled_from("abcdefg"), st.sampled_from("xyz")), min_size=1, max_size=40)


def made(names: Sequence[tuple[str, str]]) -> list[Recording]:
    spots = [Spot(project, path, "python", "") for project, path in names]
    return [Recording(spot, spot.request(1)) for spot in spots]


@given(NAMES)
def test_folds_hold_whole_projects(names: list[tuple[str, str]]) -> None:
    found = made(names)
    folds = by_fold(found)
    assert (
        sorted(id(recording) for fold in folds for recording in fold) == sorted(map(id, found)) and len(folds) <= FOLDS
    )
    projects = [{recording.spot.project for recording in fold} for fold in folds]
    assert sum(map(len, projects)) == len(set.union(*projects))


@given(NAMES)
def test_files_are_kept_together(names: list[tuple[str, str]]) -> None:
    groups = by_file(made(names))
    assert len(groups) == len(set(names)) and sum(map(len, groups)) == len(names)


def test_nothing_is_learned_from_a_project_itself() -> None:
    seen: list[set[str]] = []
    real = policy_rows.replay

    def spy(pair_: object, groups: object) -> object:
        (policy, found) = groups[0]  # type: ignore[index]
        seen.append({recording.spot.project for recording in found})
        return real(pair_, [(policy, found)])  # type: ignore[arg-type]

    with mock.patch.object(policy_rows, "replay", spy):
        learned = learned_elsewhere(pair("bytes"), Prices(table(0.05, 0.02)), recordings("bytes"), syntax=True)
    projects = {recording.spot.project for recording in recordings("bytes")}
    assert set(learned) == projects and len(seen) == 3
    assert all(len(projects - others) == 1 for others in seen) and all(known["counters"] for known in learned.values())


@given(st.integers(0, 200), st.integers(1, 60))
def test_numbers_are_spread(total: int, count: int) -> None:
    found = spread_numbers(total, count)
    assert found == sorted(set(found)) and len(found) == min(total, count)
    assert all(0 <= number < total for number in found)


def test_places_of_a_file_with_projects(tmp_path: Path) -> None:
    text = "".join(f"func Area{i}(width int) int {{\n\tresult := width * {i}\n\treturn result\n}}\n" for i in range(30))
    documents = [Document("p", f"{name}.go", "go", text.replace("Area", name)) for name in ("Disc", "Cube", "Cone")]
    file = tmp_path / "held_out.jsonl.gz"
    write_documents(file, documents)
    spots, note = held_out_spots(file, 4)
    own = [spot for spot in spots if spot.language == "go"]
    assert note == "" and len(own) == 4 and len({spot.path for spot in own}) == 2 and A_FILE == 3
    assert spots == held_out_spots(file, 4)[0]


def test_prompts_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"x = {n}", "path": "a.py"}) + "\n" for n in range(9)))
    found = prompt_spots(file, 3)
    assert [spot.prefix for spot in found] == ["x = 0", "x = 3", "x = 6"]
    assert {spot.language for spot in found} == {"python"} and len({spot.project for spot in found}) == 3
    file.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        prompt_spots(file, 3)


def test_a_missing_file_is_one_sentence() -> None:
    with pytest.raises(TrainingError, match="There is no corpus at"):
        held_out_spots(Path("none.gz"), 3)
