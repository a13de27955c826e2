"""The tree of a document after typing: once the document rests, it is the tree of a fresh parse."""

from __future__ import annotations

import asyncio

import pytest
from codespec_grammars.language import language_names
from codespec_lsp import syntax
from codespec_lsp.buffer import Buffer, TextPosition
from codespec_lsp.documents import Document
from codespec_lsp.syntax import Change, DocumentSyntax, Outside, SyntaxTree

from tests.grammars.fixtures import FOLDER
from tests.lsp.conversation import run, until

# With the invalid escape in its heredoc, one more quote at its end makes the incremental tree differ from a fresh one.
BROKEN = 'def f\n  g {\n    a = <<~X\n      text #{b} \\u{zz} "\n    X\n    h { |x| x }\n  }\nend\n'
END_OF_CODE, TIP, SEEN_FROM = TextPosition(7, 3), 80, 25


def parsed(language: str, text: str) -> SyntaxTree:
    tree = SyntaxTree(language, text)
    tree.parse()
    return tree


def text_of(language: str) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sorted((FOLDER / language).glob("code*")))


@pytest.mark.parametrize("keys", [120, pytest.param(4000, marks=pytest.mark.full)])
@pytest.mark.parametrize("language", language_names())
def test_typed_key_by_key(language: str, keys: int) -> None:
    """Typed in the middle of a text of the same language, which is broken at most keys."""
    text = text_of(language)
    middle, typed = text.find("\n", len(text) // 2) + 1, text[:keys]
    service = SyntaxTree(language)
    service.answer({"text": text})
    for number, key in enumerate(typed):
        service.answer({"changes": [Change(middle + number, 0, key)]})
    now = text[:middle] + typed + text[middle:]
    outline = service.answer({"afresh": True})
    fresh = parsed(language, now)
    assert str(service.root) == str(fresh.root) and outline == fresh.answer({})
    size = len(now.encode())
    for tip in range(size // 2, size, max(1, size // 50)):
        assert service.answer({"outside": (tip, size // 4)}) == fresh.outside(tip, size // 4)


def test_a_document_at_rest_has_the_tree_of_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syntax, "FULL_PARSE_DELAY_S", 0.3)

    async def scenario() -> None:
        buffer = Buffer(BROKEN)
        document = DocumentSyntax(Document("file:///a.rb", "ruby", 1, buffer), [], lambda: None)
        tree = document.tree
        await until(lambda: tree.parsed == 1)
        document.edited(buffer.replace(END_OF_CODE, END_OF_CODE, '"'))
        await until(lambda: tree.parsed == 2 and not tree.parsing)
        assert tree.outside(TIP, SEEN_FROM) == Outside(), "the incremental tree differs"
        await until(lambda: tree.parsed == 3 and not tree.parsing)
        assert tree.outside(TIP, SEEN_FROM) == parsed("ruby", buffer.text).outside(TIP, SEEN_FROM) == Outside("{")
        document.edited(buffer.replace(TextPosition(0, 0), TextPosition(0, 0), "\n"))
        await until(lambda: tree.parsed == 5)
        await asyncio.sleep(0.6)
        assert tree.parsed == 5, "it is parsed afresh once"
        document.close()

    run(scenario())
