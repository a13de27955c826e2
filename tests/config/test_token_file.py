"""The token file: requirements, and the message if it violates one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from codespec.errors import ConfigError
from codespec.user_folders import read_token


def make_zero(file: Path) -> None:
    file.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "not a regular file"),
        (make_zero, "not a regular file"),
        (Path.mkdir, "not a regular file"),
        (lambda file: file.write_bytes(b"x" * 5000), "longer than 4 KiB"),
        (lambda file: None, "FileNotFoundError"),
    ],
)
def test_what_is_no_token_file(make: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    make(tmp_path / "token")
    with pytest.raises(ConfigError) as caught:
        read_token(str(tmp_path / "token"), {})
    assert str(caught.value) == f"The token file {tmp_path / 'token'} can't be read ({words}): check its path and mode."


def test_a_link_to_a_token_file(tmp_path: Path) -> None:
    """Secrets are mounted as links."""
    (tmp_path / "kept").write_text("a-token-of-some-length\n")
    (tmp_path / "token").symlink_to("kept")
    assert read_token(str(tmp_path / "token"), {}) == "a-token-of-some-length"
