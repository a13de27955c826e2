"""Documents' URIs as editors send them, on Unix and on Windows."""

from __future__ import annotations

from pathlib import PureWindowsPath
from urllib.parse import quote

import pytest
from codespec_lsp.documents import path_of, split_uri
from hypothesis import given
from hypothesis import strategies as st

from codespec.secret_files import is_secret


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///a%20b/c%23.py", "/a b/c#.py"),
        ("file://localhost/a.py", "/a.py"),
        ("FILE:///a%3Fb.py", "/a?b.py"),
        ("file:/a.py", "/a.py"),
        ("untitled:Untitled-1", "Untitled-1"),
        ("untitled:/c%3A/a.py", "/c:/a.py"),
        ("file://[", ""),
        ("", ""),
    ],
)
def test_paths_on_unix(uri: str, path: str) -> None:
    assert path_of(uri, windows=False) == path


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///c%3A/Users/x%20y/a.py", "c:\\Users\\x y\\a.py"),
        ("file:///C:/a.py", "C:\\a.py"),
        ("file://localhost/c:/a.py", "c:\\a.py"),
        ("file:///c%3A/", "c:\\"),
        ("file://server/share/%C3%A9/a.py", "\\\\server\\share\\\u00e9\\a.py"),
        ("file://wsl.localhost/Debian/home/a.py", "\\\\wsl.localhost\\Debian\\home\\a.py"),
        ("file:///a.py", "\\a.py"),
        ("file:///ab:/a.py", "\\ab:\\a.py"),
        ("untitled:Untitled-1", "Untitled-1"),
    ],
)
def test_paths_on_windows(uri: str, path: str) -> None:
    assert path_of(uri, windows=True) == path


def test_secrets_are_known_by_windows_paths() -> None:
    assert is_secret(path_of("file:///c%3A/Users/x/.env.local", windows=True))
    assert not is_secret(path_of("file:///c%3A/Users/.env/main.py", windows=True))


names = st.text(st.characters(exclude_characters='/\\:*?"<>|', exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)


@given(st.lists(names.filter(lambda name: name.strip(". ") != ""), min_size=1, max_size=4), st.sampled_from("cCzZ"))
def test_what_windows_spells_comes_back(parts: list[str], drive: str) -> None:
    path = PureWindowsPath(f"{drive}:\\", *parts)
    assert path_of(path.as_uri(), windows=True) == str(path)
    quoted = "file:///" + quote(f"{drive}:", safe="") + "/" + "/".join(quote(part, safe="") for part in parts)
    assert path_of(quoted, windows=True) == str(path), "VS Code escapes the colon"


@given(st.text())
def test_any_text_is_taken_apart(text: str) -> None:
    assert split_uri(text).scheme == split_uri(text).scheme.lower()
    path_of(text, windows=True)
