"""The outline of an imported file is sent: signatures without bodies."""

from __future__ import annotations

import asyncio

import pytest
import tree_sitter
from codespec_grammars.grammar import load_grammar
from codespec_lsp.outline import MAX_BLOCKS, MAX_OUTLINE, Block, outline, split, split_all

from tests.lsp.conversation import insertion, run
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
    assert grammar is not None
    data = source.encode()
    return "".join(block.text for block in outline(tree_sitter.Parser(grammar.language).parse(data).root_node, data))


@pytest.mark.parametrize(
    ("language", "source", "expected"),
    [
        (
            "python",
            PYTHON,
            "LIMIT = 3\nclass Box(Shape):\n    size = 1\n    def area(self, scale: int = 1) -> int:\n"
            "@cache\ndef load(path):\n",
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
            "class Cart\n  int total(int w) const;\n  int x;\nint price(int);\n",
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


MEMBERS = {
    "python": (
        "@dataclass(frozen=True)\nclass Crate(Base):\n    sku: str\n    weight: int = 0\n    _row: int = 1\n"
        "    @property\n    def label(self) -> str:\n        return self.sku\n",
        "@dataclass(frozen=True)\nclass Crate(Base):\n    sku: str\n    weight: int = 0\n"
        "    @property\n    def label(self) -> str:\n",
    ),
    "python, a constructor": (
        "class Box:\n    def __init__(self, a, b: int) -> None:\n        super().__init__()\n        self.a = a\n"
        "        self.b: int = b\n        self._c = {\n            1: 2}\n        self.d = {\n            1: 2}\n",
        "class Box:\n    def __init__(self, a, b: int) -> None:\n        self.a = a\n        self.b: int = b\n"
        "        self.d = { ...\n",
    ),
    "python, an enum": (
        'class Color(Enum):\n    RED = "red"\n    BLUE = "blue"\n',
        'class Color(Enum):\n    RED = "red"\n    BLUE = "blue"\n',
    ),
    "python, constants": (
        "Names = dict[str, int]\nlogger = get()\nTABLE = {\n    1: 2,\n}\ntype Row = list[int]\n",
        "Names = dict[str, int]\nTABLE = { ...\ntype Row = list[int]\n",
    ),
    "typescript": (
        "export type Id = string | number;\nexport const MAX: number = 3;\nconst own = 1;\nexport class A extends B {\n"
        "  private x = 1;\n  #y = 2;\n  limit: number = 3;\n  get z(): number {\n    return 1;\n  }\n}\n",
        "type Id = string | number;\nexport const MAX: number = 3;\nclass A extends B\n"
        "  limit: number = 3\n  get z(): number\n",
    ),
    "typescript, a long interface": (
        "interface Big {\n" + "".join(f"  name{n}: string;\n  f{n}(a: number): void;\n" for n in range(12)) + "}\n",
        "interface Big\n" + "".join(f"  name{n}: string\n  f{n}(a: number): void\n" for n in range(12)),
    ),
    "go": (
        "package a\nconst (\n\tA = 1\n\tB = 2\n)\ntype Big struct {\n"
        + "".join(f"\tName{n} string // of the {n}th\n" for n in range(20))
        + "}\n",
        "const (\n\tA = 1\n\tB = 2\n)\ntype Big struct\n" + "".join(f"\tName{n} string\n" for n in range(20)),
    ),
    "rust": (
        "pub const X: u8 = 3;\npub struct Big {\n"
        + "".join(f"    pub name{n}: Option<String>,\n" for n in range(20))
        + "}\nimpl Big {\n    pub const K: u8 = 1;\n    pub fn f(&self) -> u8 {\n        1\n    }\n}\n",
        "pub const X: u8 = 3;\npub struct Big\n"
        + "".join(f"    pub name{n}: Option<String>\n" for n in range(20))
        + "impl Big\n    pub const K: u8 = 1;\n    pub fn f(&self) -> u8\n",
    ),
    "java": (
        "class Box {\n    private int x = 1;\n    static final int Y = 2;\n    int area(int w) {\n        return w;\n"
        "    }\n}\n",
        "class Box\n    static final int Y = 2;\n    int area(int w)\n",
    ),
    "kotlin": (
        "data class Crate(val sku: String)\nclass Box {\n    val y: Int = 1\n}\nconst val Z = 1\n"
        "enum class E {\n    A,\n    B\n}\n",
        "data class Crate(val sku: String)\nclass Box\n    val y: Int = 1\nconst val Z = 1\n"
        "enum class E\n    A\n    B\n",
    ),
    "c_sharp": (
        "class A {\n    public int X { get; set; }\n    private int y = 1;\n    const int Z = 3;\n}\n",
        "class A\n    public int X { get; set; }\n    const int Z = 3;\n",
    ),
    "c": (
        "#define MAX 3\n#define GUARD\ntypedef struct { int x; } P;\n",
        "#define MAX 3\ntypedef struct { int x; } P;\n",
    ),
    "cpp": ("using T = int;\n", "using T = int;\n"),
    "ruby": (
        "class A < B\n  MAX = 3\n  attr_reader :x\n  def f(a)\n    1\n  end\nend\n",
        "class A < B\n  MAX = 3\n  attr_reader :x\n  def f(a)\n",
    ),
    "php": (
        "<?php\nclass A {\n    const X = 1;\n    public int $y = 2;\n    private $z;\n    function f() {\n    }\n}\n",
        "class A\n    const X = 1;\n    public int $y = 2;\n    function f()\n",
    ),
}


@pytest.mark.parametrize("case", MEMBERS)
def test_what_a_type_has_and_what_a_file_defines_besides(case: str) -> None:
    source, expected = MEMBERS[case]
    assert heads(case.partition(",")[0], source) == expected


def test_it_is_bounded() -> None:
    many = "".join(f"def function_{n}(first, second):\n    return 1\n" for n in range(900))
    assert len(heads("python", many)) <= MAX_BLOCKS
    blocks = [Block(f"f{n}", "x" * 99 + "\n") for n in range(90)]
    assert len(split(blocks, ())[1]) == MAX_OUTLINE // 100 * 100
    assert len(heads("python", "class A:\n" + "".join(f"    x{n}: int\n" for n in range(390)))) <= MAX_OUTLINE


def test_imported_names_come_first_and_what_they_mention() -> None:
    blocks = [
        Block("Other", "class Other:\n"),
        Block("Depot", "class Depot:\n"),
        Block("Crate", "class Crate(Depot):\n"),
    ]
    assert split(blocks, {"Crate"}) == ("class Depot:\nclass Crate(Depot):\n", "class Other:\n")
    assert split(blocks, ()) == ("", "".join(block.text for block in blocks))
    long = [Block("A", "A\n" * (MAX_OUTLINE // 4)), Block("B", "B A\n" * (MAX_OUTLINE // 5))]
    assert split(long, {"B"})[0] == long[1].text, "what is mentioned is left out where there is too little room"
    files = [("a.py", blocks[:1]), ("b.py", blocks[1:])]
    first, rest = split_all(files, {"Other"}, "Crate")
    assert [each.path for each in first] == ["a.py"] and [each.path for each in rest] == ["b.py"]
    first, _ = split_all(files, {"Other", "Crate"}, "Crate")
    assert [each.path for each in first] == ["b.py", "a.py"], "the type's file comes first"


def test_an_open_file_that_is_imported_brings_its_definitions() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.open(PYTHON, uri="file:///p/shapes.py")
            client.open(PYTHON, uri="file:///p/unrelated.py")
            client.open("from shapes import Box\nx = \n")
            typed, sent, defined = 0, set[tuple[str, str]](), list[str]()
            while not defined:  # trees are parsed shortly after a change
                client.type(2 + typed, 1, 4 + typed, "z")
                typed += 1
                await client.texts(1, 4 + typed)
                await asyncio.sleep(0.05)
                sent = {(snippet["path"], snippet["text"]) for snippet in fake.asked[-1].body["snippets"]}
                defined = [path for path, text in sent if "def area(self, scale: int = 1) -> int:" in text]
            assert defined == ["p/shapes.py"]
            assert not any("self.size * scale" in text for _, text in sent), "no bodies"
            first = fake.asked[-1].body["snippets"]
            client.type(2 + typed, 1, 4 + typed, "z")
            await client.texts(1, 5 + typed)
            assert fake.asked[-1].body["snippets"] == first, "typing here changes nothing there"

    run(scenario())


def test_an_edited_place_and_its_definitions_come_once() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.open(PYTHON + "\n" * 20 + "def far(end):\n    return end\n", uri="file:///p/shapes.py")
            client.open("from shapes import Box, load, far\nx = \n")
            client.change(2, insertion(16, 4, "return 0 or "), uri="file:///p/shapes.py")  # inside `load`
            typed, text = 0, ""
            while "def far(end):" not in text:  # trees are parsed shortly after a change
                client.type(2 + typed, 1, 4 + typed, "z")
                typed += 1
                await client.texts(1, 4 + typed)
                await asyncio.sleep(0.05)
                text = "".join(each["text"] for each in fake.asked[-1].body["snippets"])
            assert (
                text.count("def load(path):\n") == text.count("class Box(Shape):\n") == text.count("import os\n") == 1
            )

    run(scenario())


def test_the_same_definition_in_two_files_comes_once() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            for name in ("shapes", "copies", "unrelated"):
                client.open("def draw(path):\n    return path\nclass Box:\n    size = 1\n", uri=f"file:///p/{name}.py")
            client.open("from shapes import draw\nfrom copies import draw\nbox = Box()\nbox.\n")
            typed, text = 0, ""
            while "draw" not in text:
                await asyncio.sleep(0.05)
                client.type(2 + typed, 3, 4 + typed, "z")
                typed += 1
                await client.texts(3, 4 + typed)
                text = "".join(each["text"] for each in fake.asked[-1].body["snippets"])
            assert text.count("def draw(path):\n") == text.count("class Box:\n") == 1

    run(scenario())


def test_an_open_file_brings_the_type_of_the_value_before_the_dot() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.open(PYTHON, uri="file:///p/shapes.py")
            client.open("def draw(box: Box):\n    box\n")
            await client.texts(1, 7)
            assert [each["text"] for each in fake.asked[-1].body["snippets"]] == ["import os\n"], "it is not imported"
            typed, sent = ".", list[str]()
            while len(sent) < 2:  # trees are parsed shortly after a change
                client.type(1 + len(typed), 1, 6 + len(typed), typed[-1])
                await client.texts(1, 7 + len(typed))
                sent = [snippet["text"] for snippet in fake.asked[-1].body["snippets"]]
                typed += "z"
                await asyncio.sleep(0.05)
            assert sent[0] == "class Box(Shape):\n    size = 1\n    def area(self, scale: int = 1) -> int:\n"

    run(scenario())
