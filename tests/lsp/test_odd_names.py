"""File and folder names with characters that are special in URIs, in the spellings of careful and careless clients.

A secret is recognized, and an ignored file is excluded, even if part of the name looks like a query or a fragment.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from codespec_lsp.documents import canonical, path_of
from codespec_lsp.exclusions import Rules
from hypothesis import given
from hypothesis import strategies as st

from codespec.exclusions.ignore_files import IgnoreFiles, Patterns
from codespec.exclusions.secrets import is_secret
from tests.lsp.conversation import Editor
from tests.lsp.fake_daemon import FakeDaemon
from tests.lsp.test_process_hostile import on_a_server

RULES = Rules(frozenset(), Patterns(()), IgnoreFiles())
SECRET = [".env", "prod.env", "id_rsa", "key.pem", "credentials"]
HOSTS = ["wsl$", "wsl%24", "wsl.localhost", "server", "SERVER", ""]
AFTER = ["", "#L1", "?x=1", "?a/b#c", "#W0sZmlsZQ=="]  # suffixes a client may append to a name
names = st.text("#?%;:&+ .\\ab4E\u00e9", min_size=1, max_size=5).filter(lambda name: name not in (".", ".."))
folders = st.lists(names, min_size=1, max_size=3)


def spellings(path: str) -> Iterator[str]:
    """Return a path as clients write it into a URI: with many characters escaped, few, or none."""
    yield quote(path, safe="/")
    yield quote(path, safe="/:+&;")
    if not re.search("%[0-9A-Fa-f]{2}", path):  # otherwise it denotes another file
        yield path
        yield path.replace(" ", "%20")


@given(folders, st.sampled_from(SECRET), st.sampled_from(AFTER), st.sampled_from(HOSTS))
def test_a_secret_is_one_in_any_folder(above: list[str], name: str, after: str, host: str) -> None:
    path = "/" + "/".join([*above, name])
    assert is_secret(path)
    for uri in (f"{scheme}{spelled}{after}" for spelled in spellings(path) for scheme in ("file://", "untitled:")):
        assert "may hold secrets" in RULES.reason(uri), uri
        assert "may hold secrets" in RULES.reason(canonical(uri)), uri
    for uri in (f"file://{host}{spelled}{after}" for spelled in spellings(path)):
        assert is_secret(path_of(uri, windows=True)) and is_secret(canonical(uri, windows=True)), uri


counter = itertools.count()


@given(folders, names, st.sampled_from(AFTER))
def test_an_ignored_file_is_left_out(
    tmp_path_factory: pytest.TempPathFactory, above: list[str], name: str, after: str
) -> None:
    top = tmp_path_factory.getbasetemp() / f"odd{next(counter)}"
    folder = top.joinpath(*above)
    folder.mkdir(parents=True)
    (top / ".git").mkdir()
    for each in (name, "kept.py"):
        (folder / each).touch()
    escaped = re.sub(r"([\\?*\[!# ])", r"\\\1", name)
    (top / ".gitignore").write_text(f"{escaped}\n", encoding="utf-8")
    around = any(part == name for part in above)
    for spelled in spellings(str(folder / name)):
        for uri in (f"file://{spelled}{after}", canonical(f"file://{spelled}{after}")):
            assert RULES.reason(uri), uri
    for spelled in spellings(str(folder / "kept.py")):
        for uri in (f"file://{spelled}", canonical(f"file://{spelled}")):
            assert bool(RULES.reason(uri)) == around, uri


def test_a_secret_in_a_folder_with_a_mark_is_not_sent(tmp_path: Path) -> None:
    """The real process, with clients that escape and that do not."""
    folder = tmp_path / "proj#1?"
    folder.mkdir()
    (folder / ".codespecignore").write_text("*.log\n")

    async def scenario(client: Editor, fake: FakeDaemon) -> None:
        for name, words in ((".env", "may hold secrets"), ("a.log", "excluded by .codespecignore")):
            for uri in (f"file://{folder}/{name}", (folder / name).as_uri()):
                client.open("x = SECRET\n", uri=uri)
                assert await client.texts(0, 4, uri=uri) == []
                assert words in (await client.status())["message"]
        uri = f"file://{folder}/a.py"
        client.open("x = \n", uri=uri)
        assert await client.texts(0, 4, uri=uri) == ["x = 1"]
        sent = [*fake.asked, *fake.warmed]
        assert {asked.body["path"] for asked in sent} == {f"{folder.name}/a.py"}
        assert "SECRET" not in str([asked.body for asked in sent] + fake.files)

    on_a_server(scenario)
