"""The lexer against tree-sitter, line by line, on texts in the repository and on installed packages."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

import pytest
from codespec_grammars.language import find_language, language_names

from tests.grammars.fixtures import FOLDER
from tests.grammars.sources import CORE, source_of
from tests.grammars.test_parse import grammar_of
from tools.lexer_agreement import Agreement, compare, sample

LITERALS = {
    "lua": b"a = [==[\ndon't ]]\n]==]\n--[=[\n[[\n]=]\nb = 1\nlocal c = 2\n",
    "c_sharp": b'class A {\n  string a = """\n    it "is\n    """;\n  string b = $@"{a} ""\n  x";\n  int c;\n}\n',
    "yaml": b"a: |\n  don't \"\n\n  b: 1\nb:\n  - >-\n    it's\n  - c: \"two\n      lines\"\n    d: 1\ne: it's\nf: 2\n",
    "html": b"<p>x=\"</p>\n<script>\na < b, '\n</script>\n<style>\na > b {}\n</style>\n<p>it's</p>\n<b/>\n",
    "ruby": b"a = b / c\nd = e % f\ng = x ? 'y' : /z'/\nh = %r{'#{i}}\nj\n__END__\nit's\n\"k\n",
    "bash": b"a() {\n  echo ${#b} ${c//\\'/} # it's\n  cat <<< \"$d\"\n}\ncase e in\n  f) g ;;\nesac\nh=1\n",
    "php": b"<b>it's</b>\n<?php // don't ?>\n<i>won't</i>\n<?= $a ?>\ncan't\n<?php\n# it's\n#[B]\nfunction c() {}\n",
}

ECMA = b"x =/a/\ny = /b/\nreturn /c/\n"
MORE = {  # for patterns that the texts above lack
    "javascript": ECMA,
    "php": b"<?php\n$a = <<<B\nB;\n",
    "ruby": b"=begin\n=end\na = $'\n[?b]\n:<<\ndef %(c)\nd %w(e)\nf /g/\nh = <<~I\nI\n",
    "rust": b'let a = r#"b"#;\n',
    "tsx": ECMA,
    "typescript": ECMA,
    "yaml": b"a: b#c\n",
}


@pytest.mark.parametrize("language", sorted(LITERALS))
def test_literals_of_a_language(language: str) -> None:
    result = Agreement()
    compare(grammar_of(language), language, LITERALS[language], result)
    assert result.disagreements == [] and (result.lines >= 6 or result.left_out)
    assert not result.left_out


@pytest.mark.parametrize("language", CORE)
def test_programs(language: str) -> None:
    result = Agreement()
    compare(grammar_of(language), language, source_of(language), result)
    assert result.disagreements == []


def test_the_fixtures() -> None:
    result = Agreement()
    for path in sorted(FOLDER.glob("*/*")):
        language = find_language("", path.name)
        if language in language_names():
            compare(grammar_of(language), path.name, path.read_bytes(), result)
    assert result.disagreements == [] and result.lines > 500


@pytest.mark.parametrize("language", sorted(language_names()))
def test_patterns_begin_at_known_characters(language: str) -> None:
    """The lexer looks at no other character, so a pattern that began elsewhere would never be found."""
    data = grammar_of(language).rules.data
    marks = [*data.brackets, *data.line_comments, *(mark for mark, _ in data.block_comments)]
    known = {mark[0] for mark in (*marks, *(rule.open for rule in data.strings))} | set(data.starts)
    patterns = {*data.atoms, data.heredoc, data.indented_text, *(rule.pattern for rule in data.literals)} - {""}
    paths = [path for path in FOLDER.glob("*/*") if find_language("", path.name) == language]
    text = b"\n".join([LITERALS.get(language, b""), MORE.get(language, b""), *(path.read_bytes() for path in paths)])
    for pattern in patterns:
        found = {match[0][:1].decode("latin-1") for match in re.finditer(pattern.encode(), text, re.M)}
        assert found and found <= known, pattern


@pytest.mark.full
def test_installed_packages() -> None:
    folders = [Path(sysconfig.get_path("purelib")), Path("/usr/share"), Path("/usr/include")]
    for language, paths in sample([each for each in folders if each.is_dir()], 100, 1).items():
        result = Agreement()
        for name, path in paths:
            compare(grammar_of(language), name, path.read_bytes(), result)
        assert result.count <= result.lines / 1000, result.disagreements
