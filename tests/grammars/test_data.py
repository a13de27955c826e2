"""Language data folders: valid contents, errors with file and line, and missing languages."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from codespec_grammars import Context, ContextTracker, Cursor, GrammarDataError, find_language, language_names
from codespec_grammars.grammar import compile_contexts, contexts_of, load_grammar
from codespec_grammars.language import FOLDER, Language, languages, load_language

from tests.grammars import fixtures
from tests.grammars.sources import CORE


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return a copy of Python's folder to corrupt."""
    shutil.copytree(FOLDER / "python", tmp_path / "python")
    return tmp_path / "python"


def compiled(folder: Path) -> str:
    grammar = load_grammar("python")
    assert grammar is not None
    compile_contexts(grammar.language, folder)
    return "\n".join(source for _, source in contexts_of(folder))


@pytest.mark.parametrize(
    ("query", "line", "says"),
    [
        ("(comment) @comment\n(string) @poem\n", 2, "@poem is not a context"),
        ('\n\n((comment) @comment (#lua-match? @comment "x"))\n', 3, "unknown predicate #lua-match?"),
        ("(comment) @comment\n(no_such_node) @string\n", 2, "no_such_node"),
        ("; inherits: klingon\n(comment) @comment\n", 1, "klingon"),
        ("; inherits: python\n(comment) @comment\n", 1, "inherits from itself"),
    ],
)
def test_a_query_is_refused_with_file_and_line(python: Path, query: str, line: int, says: str) -> None:
    (python / "contexts.scm").write_text(query)
    with pytest.raises(GrammarDataError, match=rf"python/contexts\.scm:{line}: .*?{re.escape(says)}") as caught:
        compiled(python)
    assert caught.value.line == line


def test_known_predicates_and_words_in_strings_are_allowed(python: Path) -> None:
    (python / "contexts.scm").write_text(
        '((comment) @comment (#not-match? @comment "@poem #lua-match?")) ; @poem\n'
        '((identifier) @identifier (#any-of? @identifier "a" "b"))\n((string) @string (#eq? @string "x"))\n'
    )
    assert '"@poem #lua-match?"' in compiled(python)


def test_inherited_patterns_come_first() -> None:
    source = "\n".join(source for _, source in contexts_of(FOLDER / "tsx"))
    assert 0 < source.index("(arguments)") < source.index("(interface_declaration)") < source.index("(jsx_text)")


@pytest.mark.parametrize(
    ("line", "says"),
    [("colour = 1", "unknown field 'colour'"), ("ids = 1 2", "newline"), ('inherits = "latin"', "'latin'")],
)
def test_a_data_file_is_refused_with_file_and_line(python: Path, line: str, says: str) -> None:
    path = python / "language.toml"
    text = path.read_text()
    path.write_text(f"{line}\n{text}" if "inherits" in line or "colour" in line else f"{text}\n[x]\n{line}\n")
    with pytest.raises(GrammarDataError, match=rf"python/language\.toml:\d+: .*{says}"):
        load_language(python)


def test_a_data_file_without_a_needed_field_is_refused(python: Path) -> None:
    (python / "language.toml").write_text('module = "tree_sitter_python"\n')
    with pytest.raises(GrammarDataError, match="is missing"):
        load_language(python)


@pytest.mark.parametrize("name", language_names())
def test_every_language_loads(name: str) -> None:
    found = load_grammar(name)
    if name not in CORE and found is None:
        pytest.skip(f"the grammar of {name} is not installed")
    assert found is not None


def test_the_core_is_there() -> None:
    assert set(CORE) <= set(language_names())


def test_every_language_has_fixtures() -> None:
    assert set(fixtures.languages()) == set(language_names())


@pytest.mark.parametrize(
    ("language_id", "path", "name"),
    [
        ("python", "", "python"),
        ("javascriptreact", "", "javascript"),
        ("typescriptreact", "a.py", "tsx"),
        ("shellscript", "", "bash"),
        ("", "src/a/main.rs", "rust"),
        ("", "deep/.bashrc", "bash"),
        ("plaintext", "x.hpp", "cpp"),
        ("cobol", "x.cob", ""),
        ("", "", ""),
    ],
)
def test_languages_are_found_by_id_then_by_file(language_id: str, path: str, name: str) -> None:
    assert find_language(language_id, path) == name


def unknown(tracker: ContextTracker) -> None:
    for piece in (b"", b"x = (", b"\xff"):
        tracker.advance(piece)
        assert tracker.context() == Cursor(Context.UNKNOWN)


def test_the_context_in_an_unknown_language_is_unknown() -> None:
    unknown(ContextTracker("cobol", b"MOVE A TO B"))


def test_the_context_without_a_wheel_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tree_sitter_go", None)
    load_grammar.cache_clear()
    unknown(ContextTracker("go", b"package main"))
    monkeypatch.undo()
    load_grammar.cache_clear()
    assert load_grammar("go") is not None


def test_a_wheel_that_does_not_fit_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_pointer: object) -> None:
        raise ValueError("Incompatible Language version 99")

    monkeypatch.setattr("tree_sitter.Language", refuse)
    load_grammar.cache_clear()
    found = load_grammar("rust")
    monkeypatch.undo()
    load_grammar.cache_clear()
    assert found is None and "version 99" in caplog.text


def test_every_field_of_a_language_is_used_by_some_language() -> None:
    given = {key for data in languages().values() for key in Language.__slots__ if getattr(data, key)}
    assert set(Language.__slots__) <= given
