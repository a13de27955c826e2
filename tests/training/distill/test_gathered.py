"""Places that the daemon gathered are what `codespec distill --gathered` has the target write at first."""

from __future__ import annotations

from pathlib import Path

import pytest

from codespec.corpus.documents import Document
from codespec.errors import TrainingError
from codespec.memory.places import Place, keep_place, places_store
from codespec.training.distill import stages
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


def test_they_are_half_of_the_texts_at_most_and_never_in_a_held_out_file(
    tmp_path: Path, documents: list[Document]
) -> None:
    held = [Document("shop", "src/held.py", "python", documents[0].text)]
    paths = ("src/held.py", "held.py", "deep/shop/src/held.py", "src/other_held.py", "a.py", "b.py", "c.py")
    elsewhere = Document("kept", "kept/general.py", "python", documents[0].text)
    gathered = [(path, "x = ", "", path) for path in (*paths, "kept/general.py")]
    own, general = Split(documents, held), Split(documents, [elsewhere])
    made = prepare_places(tmp_path, lambda: own, lambda: general, 6, seed=0, fills_in=True, more=gathered)
    taken = [place.path for place in made.written[::2]]
    assert len(made.written) == 6 and len(set(taken) & set(paths[3:])) == 3
    assert "kept/general.py" not in taken
    assert not {place.path for place in made.written[1::2]} & set(paths), "one of each, so that time takes of both"


def test_the_places_that_choose_the_weights_do_not_measure_them(tmp_path: Path, documents: list[Document]) -> None:
    both = Split(documents[:6], documents[6:])
    made = prepare_places(tmp_path, lambda: both, lambda: both, 4, seed=0, fills_in=True)
    for judging, measuring, count in (
        (made.judge_here, made.here, stages.HERE),
        (made.judge_elsewhere, made.elsewhere, stages.ELSEWHERE),
    ):
        assert len(judging) == len(measuring) == count and not set(judging) & set(measuring)
