"""The text a pair is measured on: bounded, in a fixed order, without hidden or installed files."""

from __future__ import annotations

from pathlib import Path

import pytest

from codespec.errors import ConfigError
from codespec.pair import sample
from codespec.pair.sample import named_sample, own_sample


def names(found: sample.Sample) -> list[str]:
    return [name for name, _ in found.texts]


def test_hidden_and_installed_files_are_skipped(tmp_path: Path) -> None:
    kept = ("a.py", "pkg/b.rs", "pkg/sub/c.ts")
    other = ("notes.txt", ".hidden.py", ".git/x.py", "node_modules/x/i.js", "venv/x.py", "pkg/__pycache__/y.py")
    for name in (*kept, *other, "mine/lib/z.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    (tmp_path / "mine" / "pyvenv.cfg").touch()
    found = own_sample(tmp_path)
    assert names(found) == list(kept) and found.source == "files here" and found.size == 18


def test_many_and_large_files_are_bounded(tmp_path: Path) -> None:
    for number in range(120):
        (tmp_path / f"m{number:03}.py").write_text("value = 'é'\n" * 3000)
    found = own_sample(tmp_path)
    sizes = [len(text.encode()) for _, text in found.texts]
    assert found.size <= sample.MAX_BYTES and max(sizes) <= sample.MAX_OF_ONE
    assert len(sizes) == sample.MAX_FILES and all(text.endswith("\n") for _, text in found.texts)
    assert names(found)[:3] == ["m000.py", "m003.py", "m006.py"]  # evenly spaced over all files
    assert found == own_sample(tmp_path)


def test_what_is_no_text_is_left_out_of_files_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"\xff\xfe")
    (tmp_path / "b.py").write_bytes(b"x\0y")
    (tmp_path / "c.py").write_bytes(b"x = 1\r\n")
    (tmp_path / "d.py").symlink_to(tmp_path / "gone.py")
    assert own_sample(tmp_path).texts == (("c.py", "x = 1\r\n"),)


def test_a_line_longer_than_the_bound_is_cut_at_a_character(tmp_path: Path) -> None:
    (tmp_path / "min.js").write_text("é" * sample.MAX_OF_ONE)
    text = own_sample(tmp_path).texts[0][1]
    assert set(text) == {"é"} and len(text.encode()) <= sample.MAX_OF_ONE


def test_named_files_are_taken_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("é" * 50_000)
    found = named_sample([file])
    assert found.source == "named files" and found.size == 100_000


@pytest.mark.parametrize("data", [b"a\xff", b"a\0b"])
def test_a_named_file_that_is_no_text_is_one_sentence(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(data)
    with pytest.raises(ConfigError, match=r"a\.bin is not UTF-8 text \(byte 1\): name other files\.$"):
        named_sample([tmp_path / "a.bin"])


def test_a_named_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.py", tmp_path):
        with pytest.raises(ConfigError, match=r"can't be read .*: check the path"):
            named_sample([path])
