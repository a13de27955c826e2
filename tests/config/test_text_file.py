"""User text files as programs save them: with a byte-order mark, with Windows line ends, in another encoding."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from codespec_lab.bench.sites import read_prompts
from codespec_lsp.imports import read_text as read_source_file
from hypothesis import given
from hypothesis import strategies as st

from codespec.cli.complete import read_source, split_at
from codespec.errors import CodespecError
from codespec.exclusions.ignore_files import IgnoreFiles
from codespec.files import NotUtf8, decode_text, read_text
from codespec.store.choice import resolve_engine
from codespec.user_folders import read_token

TOKEN = "a-token-of-some-length"
# A text as saved by Notepad, PowerShell and editors.
SAVED: dict[str, Callable[[str], bytes]] = {
    "plain": str.encode,
    "with a mark": lambda text: text.encode("utf-8-sig"),
    "with a mark and Windows' line ends": lambda text: text.replace("\n", "\r\n").encode("utf-8-sig"),
}
MARKS = {"utf-16": "", "utf-16-le": "\ufeff", "utf-16-be": "\ufeff", "utf-32": "", "utf-32-le": "\ufeff"}

# Each way to read a user's text, and its result for the `text` above.
READERS: dict[str, tuple[str, Callable[[Path], object], object]] = {
    "a place in a source": ("x = \ny\n", lambda file: split_at(read_source(file), 1, 5)[0], "x = "),
    "the configuration": ("threads = 3\n", lambda file: resolve_engine({}, file, {}).threads, 3),
    "a token": (f"{TOKEN}\n", lambda file: read_token(str(file), {}), TOKEN),
    "prompts": (json.dumps({"prompt": "a\u2028b"}) + "\n", lambda file: read_prompts(file)[0].prefix, "a\u2028b"),
}


@pytest.mark.parametrize("saved", SAVED)
@pytest.mark.parametrize("reader", READERS)
def test_a_mark_and_line_ends_are_no_part_of_a_text(reader: str, saved: str, tmp_path: Path) -> None:
    text, read, expected = READERS[reader]
    (tmp_path / "file").write_bytes(SAVED[saved](text))
    assert read(tmp_path / "file") == expected


@pytest.mark.parametrize("encoding", MARKS)
@pytest.mark.parametrize("reader", READERS)
def test_another_encoding_is_refused_by_its_name(reader: str, encoding: str, tmp_path: Path) -> None:
    text, read, _ = READERS[reader]
    (tmp_path / "file").write_bytes((MARKS[encoding] + text).encode(encoding))
    with pytest.raises(CodespecError) as caught:
        read(tmp_path / "file")
    assert f"is not UTF-8 text (it is {encoding[:6].upper()})" in str(caught.value)


@pytest.mark.parametrize("saved", SAVED)
def test_ignore_files_and_files_to_copy_from(saved: str, tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_bytes(SAVED[saved]("a.py\nb.py\n"))
    assert all(IgnoreFiles().reason(tmp_path / name, []) for name in ("a.py", "b.py"))
    (tmp_path / "c.py").write_bytes(SAVED[saved]("x\n"))
    assert read_source_file(str(tmp_path / "c.py")).split() == ["x"]


def test_an_ignore_file_in_another_encoding_is_told_of(tmp_path: Path) -> None:
    """Its patterns would match nothing, and files it should exclude would be sent."""
    (tmp_path / ".codespecignore").write_bytes("a.py\n".encode("utf-16"))
    assert "can't be read (it is UTF-16)" in IgnoreFiles().reason(tmp_path / "a.py", [])


@given(st.text())
def test_text_comes_back(text: str) -> None:
    data = text.encode("utf-8", "replace").decode()
    assert decode_text(data.encode()) == data.removeprefix("\ufeff")
    assert decode_text(data.encode("utf-8-sig")) == data


def test_which_byte_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"caf\xe9")
    with pytest.raises(NotUtf8, match=r"^byte 3$"):
        read_text(tmp_path / "file")
