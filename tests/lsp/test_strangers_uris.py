"""Spellings of one file with dots, slashes and invisible characters: one document, and the same rules."""

from __future__ import annotations

from pathlib import Path

import pytest
from codespec_lsp.documents import canonical, path_of
from codespec_lsp.exclusions import Rules

from codespec.exclusions.ignore_files import IgnoreFiles, Patterns
from codespec.exclusions.secrets import is_secret
from tests.lsp.conversation import insertion, run
from tests.lsp.fake_daemon import talking

SPELLINGS = (
    "/p/a.py",
    "/p/./a.py",
    "/p/b/../a.py",
    "/p//a.py",
    "/p/a.py/",
    "/p/%2E/a.py",
    "/../p/a.py",
    "/p/b/%2e%2e/a.py",
)


@pytest.mark.parametrize("spelled", SPELLINGS)
def test_one_document(spelled: str) -> None:
    assert canonical(f"file://{spelled}", windows=False) == "file:///p/a.py"
    assert canonical(f"file:///c:{spelled}", windows=True) == "file:///c:/p/a.py"


def test_roots_and_names_with_marks_stay() -> None:
    assert (path_of("file:///", windows=False), path_of("file:///C:/x/..", windows=True)) == ("/", "C:\\")
    assert path_of("file:///p?x=/../a.py", windows=False) == "/p?x=/../a.py", "what follows a ? may be no path"


def test_a_change_under_another_spelling_is_of_the_same_text() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.open("x = \n", uri="file:///p/a.py")
            client.change(2, insertion(0, 0, "yy"), uri="file:///p/b/../a.py")
            assert await client.texts(0, 6, uri="file:///p/a.py") == ["yyx = 1"]

    run(scenario())


def test_an_anchored_pattern_sees_through_dots(tmp_path: Path) -> None:
    (tmp_path / ".codespecignore").write_text("/private/\n")
    for name in ("private", "src"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("")
    rules = Rules(frozenset({tmp_path}), Patterns(()), IgnoreFiles())
    root = tmp_path.as_uri()
    for spelled in ("/private/a.py", "/src/../private/a.py", "//private//a.py", "/./private/./a.py"):
        assert "excluded by .codespecignore" in rules.reason(root + spelled)
    assert rules.reason(f"{root}/private/../src/a.py") == ""


@pytest.mark.parametrize("name", ["a.key;1", "a.pem%3Bv=1", ".env/.", "a.key\u202e", ".e\u200cnv", "%2E%E2%80%8Benv"])
def test_names_that_hide_a_secret(name: str) -> None:
    assert is_secret(f"file:///p/{name}")


@pytest.mark.parametrize("name", ["a;b.py", "key;a.py", "caf\u00e9.py", "a\u200d.py", "a/./b.py"])
def test_names_that_hide_nothing(name: str) -> None:
    assert not is_secret(f"file:///p/{name}")


def test_the_normal_forms_of_a_name_are_one_on_a_mac_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    forms = ("file:///caf%C3%A9/%FF.py", "file:///cafe%CC%81/%FF.py", "file:///cafe\u0301/%ff.py")
    assert len({canonical(uri) for uri in forms}) == 2
    monkeypatch.setattr("codespec_lsp.documents.MAC", True)
    assert {canonical(uri) for uri in forms} == {"file:///caf%C3%A9/%FF.py"}


@pytest.mark.parametrize("scheme", ["file:///", "untitled:/", "file://host/"])
def test_a_file_in_thousands_of_folders_is_refused_at_once(scheme: str) -> None:
    rules = Rules(frozenset({Path("/a")}), Patterns(["*.log"]), IgnoreFiles())
    reason = rules.reason(canonical(f"{scheme}{'a/' * 20_000}b.py"))
    assert reason == "b.py lies in more than 100 folders, so it is not completed."
    assert not rules.reason("file:///" + "a/" * 50 + "b.py")
