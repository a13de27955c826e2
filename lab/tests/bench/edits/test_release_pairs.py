"""Files that changed between two releases are read from archives as pip and npm fetch them."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from codespec_lab.bench.edits.release_pairs import FilePair, release_pairs

from codespec.errors import TrainingError

OLD = "import os\n\n\ndef area(w):\n    return w * w\n"
NEW = "import os\n\n\ndef area(width):\n    return width * width\n"


def wheel(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def tarball(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def rebuilt(pair: FilePair) -> str:
    lines = pair.old.splitlines(keepends=True)
    for hunk in reversed(pair.hunks):
        assert "".join(lines[hunk.start_row : hunk.end_row]) == hunk.old
        lines[hunk.start_row : hunk.end_row] = [hunk.new]
    return "".join(lines)


def test_a_wheels_changed_files_with_their_hunks(tmp_path: Path) -> None:
    same = {"box/same.py": b"x = 1\n", "box-1.dist-info/RECORD": b""}
    old = wheel(tmp_path / "old.whl", {"box/shape.py": OLD.encode(), "box/gone.py": b"y = 1\n", **same})
    new = wheel(tmp_path / "new.whl", {"box/shape.py": NEW.encode(), "box/added.py": b"z = 1\n", **same})
    (pair,) = release_pairs(old, new)
    assert (pair.path, pair.language, pair.old, pair.new) == ("box/shape.py", "python", OLD, NEW)
    assert [(hunk.start_row, hunk.end_row) for hunk in pair.hunks] == [(3, 5)]
    assert rebuilt(pair) == NEW


def test_a_tarballs_folder_may_carry_the_version(tmp_path: Path) -> None:
    old = tarball(tmp_path / "box-1.tgz", {"box-1/src/a.ts": b"let a = 1;\n", "box-1/b.js": b"b();\n"})
    new = tarball(tmp_path / "box-2.tgz", {"box-2/src/a.ts": b"let b = 1;\n", "box-2/b.js": b"b();\n"})
    assert [(pair.path, pair.language) for pair in release_pairs(old, new)] == [("src/a.ts", "typescript")]


def test_data_minified_files_and_other_encodings_are_left_out(tmp_path: Path) -> None:
    names = {"a.bin": b"1", "a.js": b"x" * 2000, "b.py": b"\xff\n", "c.py": b"a\0\n", "d.py": b"x = 1\n" * 7000}
    old = wheel(tmp_path / "old.whl", names)
    new = wheel(tmp_path / "new.whl", {name: data + b"2" for name, data in names.items()})
    assert list(release_pairs(old, new)) == []


def test_an_unreadable_archive_is_one_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"no archive")
    with pytest.raises(TrainingError, match="cannot be read"):
        list(release_pairs(broken, broken))
