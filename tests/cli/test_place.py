"""FILE:LINE:COL: its meaning, and every way in which it can be invalid."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.cli.complete import parse_place, read_source, split_at
from codespec.errors import RequestError

SOURCE_TEXT = st.text(st.sampled_from("ab \t\r\n\U0001f469\u200d\u00e9\u2028\x0c\x85"), max_size=60)


@given(SOURCE_TEXT, st.data())
def test_every_place_inside_splits_the_text_there(text: str, data: st.DataObject) -> None:
    lines = text.split("\n")
    line = data.draw(st.integers(1, len(lines)))
    shown = lines[line - 1].removesuffix("\r")
    column = data.draw(st.integers(1, len(shown) + 1))
    prefix, suffix = split_at(text, line, column)
    assert prefix + suffix == text
    assert prefix.count("\n") == line - 1
    assert prefix.rpartition("\n")[2] == shown[: column - 1]


@given(SOURCE_TEXT, st.integers(0, 99), st.integers(0, 99))
def test_every_place_outside_is_refused_with_the_limits(text: str, line: int, column: int) -> None:
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        expected = f"Line {line} is outside the file: choose a line from 1 to {len(lines)}."
    else:
        most = len(lines[line - 1].removesuffix("\r")) + 1
        if 1 <= column <= most:
            return
        expected = f"Column {column} is outside line {line}: choose a column from 1 to {most}."
    with pytest.raises(RequestError) as caught:
        split_at(text, line, column)
    assert str(caught.value) == expected and caught.value.field == "place"


@given(st.text(min_size=1).filter(lambda name: "\0" not in name), st.integers(0, 10**9), st.integers(0, 10**9))
def test_any_file_name_may_be_followed_by_a_place(name: str, line: int, column: int) -> None:
    assert parse_place(f"{name}:{line}:{column}") == (Path(name), line, column)


@pytest.mark.parametrize(
    "place",
    [
        "", "a.py", "a.py:1", ":1:2", "a.py:1:", "a.py::2", "a.py:-1:2", "a.py:1:2 ", "a.py:+1:2", "a.py:1.0:2",
        "a.py:\u0661:1", "a.py:\u00b2:1", "a.py:x:1", "1:2", f"a.py:{'9' * 5000}:1",
    ],
)  # fmt: skip
def test_what_is_no_place(place: str) -> None:
    with pytest.raises(RequestError, match="is not of the form FILE:LINE:COL: write, for example"):
        parse_place(place)


@given(SOURCE_TEXT)
def test_text_is_read_to_the_byte(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "source.txt"
    file.write_bytes(text.encode())
    assert read_source(file) == text


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"ok\xff\xfe", "is not UTF-8 text (byte 2): convert the file to UTF-8"),
        (b"caf\xe9 = 1\n", "is not UTF-8 text (byte 3)"),
        (b"\x89PNG\r\n\x1a\n\0\0", "is not UTF-8 text (byte 0)"),
        (b"\x7fELF\x02\x01\0", "is binary (a NUL at character 6): choose a text file"),
    ],
)
def test_files_that_are_no_text(data: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(data)
    with pytest.raises(RequestError) as caught:
        read_source(file)
    assert words in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for file, reason in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(RequestError, match=reason):
            read_source(file)
