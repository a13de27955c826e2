"""The parser and its input: it stops where required, and the part above the cursor opens what is open there."""

from __future__ import annotations

import random

import pytest
from codespec_grammars import Context, ContextTracker
from codespec_grammars.grammar import (
    MAX_BYTES,
    PARSED,
    Grammar,
    WindowParser,
    heads,
    load_grammar,
    look_up,
    mended,
    parse_start,
)
from codespec_grammars.lexer import LexedWindow, Lexer, LexState

from tests.grammars.sources import CORE, source_of


def grammar_of(language: str) -> Grammar:
    grammar = load_grammar(language)
    assert grammar is not None
    return grammar


def test_a_parse_that_takes_too_long_is_given_up() -> None:
    parser, chance = WindowParser(grammar_of("cpp").language), random.Random(0)
    soup = b"".join(chance.choices([b"(", b")", b"{", b"}", b"<", b">", b"a ", b"\n", b"&", b"::", b";", b"="], k=1500))
    assert parser.parse(soup) is None
    again = parser.parse(b"int x = 1;\n")
    assert again is not None and again.root_node.end_byte == 11 and not again.root_node.has_error


@pytest.mark.parametrize("language", CORE)
def test_real_code_is_parsed_to_its_end(language: str) -> None:
    source = source_of(language)
    for start in range(0, min(len(source), 20_000), 1024):
        tracker = ContextTracker(language, source[:start], source[start:])
        tracker.context()
        assert not tracker.given_up


def openers(state: LexState) -> list[bytes]:
    return [opener.open for opener, _ in state.stack]


@pytest.mark.parametrize("language", CORE)
def test_the_parsed_part_opens_what_is_open_at_the_tip(language: str) -> None:
    grammar, source, chance = grammar_of(language), source_of(language), random.Random(0)
    begun = 0
    for _ in range(60):
        lexed = LexedWindow(grammar.rules, source[: chance.randrange(len(source))])
        state = lexed.state()
        start = parse_start(lexed.lexer, state.stack)
        if start is None:
            continue
        part = heads(lexed.lexer, state.stack, start) + lexed.text[start:]
        assert openers(Lexer(grammar.rules, part).run(LexState(), len(part))) == openers(state), part
        assert len(lexed.text) - start <= PARSED
        begun += start > 0
    assert begun >= 8


@pytest.mark.parametrize(
    ("language", "above", "line", "context"),
    [
        ("typescript", b"export class Shape extends Base {\n  private a = 1;\n", b"  area(unit: string, ", "signature"),
        ("java", b"public class Shape {\n    int a;\n", b"    int area(String unit, ", "signature"),
        ("rust", b"impl Shape {\n    const A: u8 = 1;\n", b"    fn area(&self, ", "signature"),
        ("python", b"class Shape:\n    a = 1\n", b"    def area(self, ", "signature"),
        ("json", b'{\n  "rows": [\n', b'    {"first": ', "operator"),
        ("go", b"func first() {\n\tcall(\n", b"\t\tsecond, ", "arguments"),
        ("javascript", b"const table = {\n  first: [\n", b"    call(1, ", "arguments"),
        ("c", b"int table[] = {\n", b"    1, call(", "arguments"),
    ],
)
def test_what_was_opened_far_above_is_still_known(language: str, above: bytes, line: bytes, context: str) -> None:
    filler = {
        "typescript": b"  get one(): number { return this.a; }\n",
        "java": b"    int one() { return this.a; }\n",
        "rust": b"    fn one(&self) -> u8 { 1 }\n",
        "python": b"    def one(self):\n        return self.a\n\n",
        "json": b'    {"first": [1, 2], "second": null},\n',
        "go": b"\t\tsecond,\n",
        "javascript": b"    call(1),\n",
        "c": b"    1, 2, 3,\n",
    }[language]
    prefix = above + filler * (3 * PARSED // len(filler)) + line
    tracker = ContextTracker(language, prefix)
    assert tracker.context().context == context
    assert tracker.bytes_parsed < 2 * PARSED


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_a_string_that_goes_on_after_a_backslash(newline: bytes) -> None:
    prefix = b"first = 1" + newline + b"x = 'some text \\"
    tracker = ContextTracker("python", prefix)
    for piece in (newline, b"and", b" more(", b"' + "):
        prefix += piece
        tracker.advance(piece)
        assert tracker.context() == ContextTracker("python", prefix).context()


def test_brackets_that_look_alike_are_closed_each_in_its_way() -> None:
    grammar, suffix = grammar_of("javascript"), b"\nother()\n"
    fixed = []
    for text in (b"call(() => {", b"call({"):
        lexed = LexedWindow(grammar.rules, text)
        fixed.append(mended(grammar.rules, text, lexed.state(), suffix))
    assert fixed[0] != fixed[1]


def test_a_query_reads_what_was_parsed_although_another_text_came_since() -> None:
    grammar = grammar_of("bash")
    parser, other = WindowParser(grammar.language), WindowParser(grammar.language)
    tree = parser.parse(b"source lib.sh\n")
    assert tree is not None and other.parse(b"echo lib.sh and more\n") is not None
    found = look_up(tree, grammar.contexts, 7, 6, 6)
    assert found.inside is Context.IMPORT  # `source` is recognized by its text


def test_a_text_too_long_is_given_up() -> None:
    parser = WindowParser(grammar_of("python").language)
    assert parser.parse(b"x = 1\n" * MAX_BYTES) is None
