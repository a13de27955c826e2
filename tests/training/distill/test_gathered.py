"""Places that the daemon gathered are what `codespec distill --gathered` has the target write at first."""

from __future__ import annotations

from pathlib import Path

import pytest

from codespec.corpus.documents import Document
from codespec.errors import TrainingError
from codespec.memory.places import Place, keep_place, places_store
from codespec.training.distill.command import gathered_places
from codespec.training.distill.files import Split
from codespec.training.distill.stages import prepare_places


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_without_any_it_says_how_to_gather_some() -> None:
    with pytest.raises(
        TrainingError, match=r"^No places have been gathered: set gather_places = true .* --gathered\.$"
    ):
        gathered_places()


def test_they_are_written_at_first(tmp_path: Path, documents: list[Document]) -> None:
    place = Place("/project", "src/a.py", "python", "def area(", "):\n    pass\n", "width, height")
    keep_place(places_store(), place, [])
    gathered = gathered_places()
    assert gathered == [("src/a.py", "def area(", "):\n    pass\n", "width, height")]
    both = Split(documents, documents)
    made = prepare_places(tmp_path, lambda: both, lambda: both, 4, seed=0, fills_in=True, more=gathered)
    assert len(made.written) == 4 and made.written[0] == gathered[0] and gathered[0] not in made.written[1:]
