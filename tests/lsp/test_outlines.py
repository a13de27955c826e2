"""The outline of an imported file is sent: signatures without bodies."""

from __future__ import annotations

import asyncio

import pytest
import tree_sitter
from codespec_grammars.registry import Grammar, load_grammar
from codespec_lsp.syntax_tree import MOST_OUTLINE, outline

from tests.lsp.conversation import run
from tests.lsp.fake_daemon import talking

PYTHON = '''import os

LIMIT = 3


class Box(Shape):
    """A box."""

    size = 1

    def area(self, scale: int = 1) -> int:
        def inner():
            return 1
        return self.size * scale


@cache
def load(path):
    return path


for row in rows:
    print(row)
'''


def heads(language: str, source: str) -> str:
    grammar = load_grammar(language)
    assert isinstance(grammar, Grammar)
    data = source.encode()
    return outline(tree_sitter.Parser(grammar.language).parse(data).root_node, data)


@pytest.mark.parametrize(
    ("language", "source", "expected"),
    [
        (
            "python",
            PYTHON,
            "class Box(Shape):\n    def area(self, scale: int = 1) -> int:\ndef load(path):\n",
        ),
        (
            "go",
            "package a\n\ntype Point struct {\n\tX int\n}\n\nfunc Area(w, h int) int {\n\treturn w * h\n}\n",
            "type Point struct {\n\tX int\n}\nfunc Area(w, h int) int\n",
        ),
        (
            "typescript",
            "export interface Box {\n  left: number;\n}\nexport function area(box: Box): number {\n  return 1;\n}\n",
            "interface Box {\n  left: number;\n}\nfunction area(box: Box): number\n",
        ),
        (
            "javascript",
            "class Box {\n  area(scale) {\n    return 1;\n  }\n}\nwhile (x) {\n  go();\n}\n",
            "class Box\n  area(scale)\n",
        ),
        ("rust", "impl Box {\n    pub fn area(&self) -> f64 {\n        1.0\n    }\n}\n", None),
        ("c", "int area(int w, int h) {\n\treturn w * h;\n}\n", "int area(int w, int h)\n"),
        (
            "c",
            "#ifndef A\n#define A\nstruct P {\n  int x;\n};\nint *total(int w, int h);\nextern int y;\n#endif\n",
            "struct P {\n  int x;\n}\nint *total(int w, int h);\n",
        ),
        (
            "cpp",
            "#pragma once\nnamespace shop {\nclass Cart {\n  int total(int w) const;\n  int x;\n};\n"
            "int price(int);\n}\n",
            "class Cart\n  int total(int w) const;\nint price(int);\n",
        ),
        (
            "typescript",
            "export declare function total(a: number): number;\n"
            "export const price = (a: number) => {\n  return a;\n};\nconst tax = (b: number) => b;\nconst z = 3;\n",
            "function total(a: number): number;\nexport const price = (a: number) =>\nconst tax = (b: number) =>\n",
        ),
        ("java", "class Box {\n    int area(int w) {\n        return w;\n    }\n}\n", None),
        ("json", '{"a": {"b": 1}}\n', ""),
    ],
)
def test_heads_without_bodies(language: str, source: str, expected: str | None) -> None:
    found = heads(language, source)
    if expected is None:
        assert "area(" in found and "return" not in found and "1.0" not in found
    else:
        assert found == expected


def test_it_is_bounded() -> None:
    assert (
        len(heads("python", "".join(f"def function_{n}(first, second):\n    return 1\n" for n in range(900))))
        <= MOST_OUTLINE
    )


def test_an_open_file_that_is_imported_brings_its_definitions() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.open(PYTHON, uri="file:///p/shapes.py")
            client.open(PYTHON, uri="file:///p/unrelated.py")
            client.open("from shapes import Box\nx = \n")
            await asyncio.sleep(0.3)  # trees are parsed shortly after a change
            await client.texts(1, 4)
            sent = {(snippet["path"], snippet["text"]) for snippet in fake.asked[-1].body["snippets"]}
            defined = [path for path, text in sent if "def area(self, scale: int = 1) -> int:" in text]
            assert defined == ["/p/shapes.py"]
            assert not any("self.size * scale" in text for _, text in sent), "no bodies"
            first = fake.asked[-1].body["snippets"]
            client.type(2, 1, 4, "z")
            await client.texts(1, 5)
            assert fake.asked[-1].body["snippets"] == first, "typing here changes nothing there"

    run(scenario())
