"""Tokens and keys with what shells, secret stores and editors put around them."""

from __future__ import annotations

from pathlib import Path

import pytest

from codespec.errors import ConfigError
from codespec.server.keys_file import add_key, read_keys
from codespec.user_folders import TOKEN_VARIABLE, read_token

TOKEN = "abcdefgh-0123 ABCDEFGH"


@pytest.mark.parametrize("around", ["{}\n", " {}", "{} ", "\t{}\r\n"])
def test_blanks_around_a_token_do_not_count(around: str, tmp_path: Path) -> None:
    """An HTTP header drops them, so the daemon would refuse every client."""
    file = tmp_path / "token"
    file.write_bytes(around.format(TOKEN).encode())
    assert read_token("", {TOKEN_VARIABLE: around.format(TOKEN)}) == read_token(str(file), {}) == TOKEN


def test_a_token_of_blanks_is_none() -> None:
    assert read_token("", {TOKEN_VARIABLE: " \n"}) == ""
    with pytest.raises(ConfigError, match="too short or not printable ASCII"):
        read_token("", {TOKEN_VARIABLE: " " * 20 + "short"})


def test_a_keys_file_that_an_editor_saved_with_a_mark_and_crlf(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    add_key(file, "ana")
    before = read_keys(file)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert read_keys(file) == before
