"""Document URIs as editors send them, on Unix and on Windows."""

from __future__ import annotations

from pathlib import PureWindowsPath
from urllib.parse import quote

import pytest
from codespec_lsp.documents import canonical, path_of, split_uri
from hypothesis import example, given
from hypothesis import strategies as st

from codespec.exclusions.secrets import is_secret


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///a%20b/c%23.py", "/a b/c#.py"),
        ("file://localhost/a.py", "/a.py"),
        ("FILE:///a%3Fb.py", "/a?b.py"),
        ("file:/a.py", "/a.py"),
        ("file:////srv/a.py", "/srv/a.py"),
        ("file:///srv/caf%E9/a.py", "/srv/caf\udce9/a.py"),
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
        ("file:////server/share/a.py", "\\\\server\\share\\a.py"),
        ("file://wsl%24/Debian/srv/a.py", "\\\\wsl$\\Debian\\srv\\a.py"),
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
names = names.filter(lambda name: not name.endswith((".", " ")))


@given(st.lists(names, min_size=1, max_size=4), st.sampled_from("cCzZ"))
def test_what_windows_spells_comes_back(parts: list[str], drive: str) -> None:
    path = PureWindowsPath(f"{drive}:\\", *parts)
    assert path_of(path.as_uri(), windows=True) == str(path)
    quoted = "file:///" + quote(f"{drive}:", safe="") + "/" + "/".join(quote(part, safe="") for part in parts)
    assert path_of(quoted, windows=True) == str(path), "VS Code escapes the colon"


SPELLINGS = [
    (
        "file:///c%3A/dev/a.py",
        "file:///c:/dev/a.py",
        "file:///C:/dev/a.py",
        "file:///C%3a/dev/a.py",
        "FILE:/c:/dev/a.py",
    ),
    ("file:///p/a%20b.py", "file:///p/a b.py", "file://localhost/p/a%20b.py", "file:////p/a%20b.py"),
    ("file:///p/%C3%A9.py", "file:///p/%c3%a9.py", "file:///p/\u00e9.py"),
    ("file:///p/c%2B%2B/a.py", "file:///p/c++/a.py", "file:///p/c%2b+/a.py"),
    ("file:///p/%40scope/%5Bid%5D.ts", "file:///p/@scope/[id].ts"),
    ("file:///p%231/a.py", "file:///p#1/a.py"),
    ("file:///p/100%25.py", "file:///p/100%.py"),
    ("file://wsl%24/Debian/a.py", "file://wsl$/Debian/a.py", "file://WSL$/Debian/a.py"),
    ("untitled:Untitled-1", "untitled:Untitled%2D1"),
    ("untitled:/c%3A/a.py", "untitled:/C:/a.py"),
    ("vscode-notebook-cell:/p/a%20b.ipynb#W0sZmlsZQ%3D%3D", "vscode-notebook-cell:/p/a b.ipynb#W0sZmlsZQ=="),
]
DIFFERENT = [
    ("file:///a.py", "file:///A.py"),
    ("file:///%FF.py", "file:///%FE.py"),
    ("file:///c%3A/a.py", "file:///d:/a.py"),
]
DIFFERENT += [
    ("file://one/a.py", "file://two/a.py"),
    ("git:/a.py?HEAD", "git:/a.py?main"),
    ("file:///a.py", "git:/a.py"),
]
DIFFERENT += [("vscode-notebook-cell:/a.ipynb#1", "vscode-notebook-cell:/a.ipynb#2"), ("file:///a.py", "file:a.py")]


@pytest.mark.parametrize("spellings", SPELLINGS, ids=lambda spellings: spellings[0])
def test_spellings_of_one_document(spellings: tuple[str, ...]) -> None:
    assert len({canonical(uri, windows=False) for uri in spellings}) == 1


@pytest.mark.parametrize("uris", DIFFERENT, ids=str)
def test_different_documents(uris: tuple[str, str]) -> None:
    assert canonical(uris[0], windows=False) != canonical(uris[1], windows=False)


def test_windows_has_more_spellings() -> None:
    assert canonical("file:///c:\\dev\\a.py", windows=True) == canonical("file:///C%3A/dev/a.py", windows=True)
    assert canonical("file:////Server/x/a.py", windows=True) == canonical("file://server/x/a.py", windows=True)


@given(st.text(), st.booleans())
@example("//c:/.", True)
def test_any_text_has_one_spelling(text: str, windows: bool) -> None:
    """The canonical spelling names the same path and is its own canonical spelling."""
    for uri in (text, f"file:{text}", f"file://{text}", f"file:///{text}", f"untitled:{text}", f"x:{text}"):
        assert split_uri(uri).scheme == split_uri(uri).scheme.lower()
        once = canonical(uri, windows)
        assert canonical(once, windows) == once
        assert path_of(once, windows).lower() == path_of(uri, windows).lower()
