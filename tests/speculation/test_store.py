"""Learned statistics outlive the process; a broken file or an inaccessible folder is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from codespec import files
from codespec.speculation.acceptance_model import AcceptanceModel, Learned, forget


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "codespec" / "acceptance"


def taught() -> AcceptanceModel:
    survival = AcceptanceModel()
    survival.learn("suffix", "comment", [0.9, 0.8], 1)
    return survival


def test_kept_by_pair_and_forgotten() -> None:
    notes: list[str] = []
    Learned("one", notes).save(taught())
    assert Learned("one", notes).load().as_dict() == taught().as_dict()
    assert Learned("two", notes).load().counters == {}
    assert forget() == 1 and forget() == 0
    assert Learned("one", notes).load().counters == {} and notes == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 99, "content": {}}', '{"format": 1, "content": {}}', "\x00\xff"]
)
def test_a_corrupt_file_is_reported_and_learned_afresh(folder: Path, text: str) -> None:
    folder.mkdir(parents=True)
    (folder / "one.json").write_bytes(text.encode("latin-1"))
    notes: list[str] = []
    learned = Learned("one", notes)
    assert learned.load().counters == {} and len(notes) == 1 and "learned again" in notes[0]
    learned.save(taught())
    assert Learned("one", notes).load().counters and len(notes) == 1


def test_a_folder_that_cannot_be_written_is_reported_once(folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("a file stands where the folder should be")
    notes: list[str] = []
    learned = Learned("one", notes)
    learned.save(taught())
    learned.save(taught())
    assert len(notes) == 1 and "learn = false" in notes[0]


def test_a_write_that_fails_leaves_the_old_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Learned("one", []).save(taught())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="space"):
        files.write(folder / "one.json", {})
    assert [file.name for file in folder.iterdir()] == ["one.json"]
    assert Learned("one", []).load().counters
