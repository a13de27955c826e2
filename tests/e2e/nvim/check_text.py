"""The plugin's pure text functions on random texts, against Python equivalents."""

from __future__ import annotations

import random

import pytest

from tests.e2e.nvim.editor import Editor

ALPHABET = ["a", "b_1", " ", "\t", "\n", "(", "):", "é", "ß", "漢", "🎉", "x.y", "    ", '"']
PIECES = """
local text, found = require('codespec.text'), {}
for _, rest in ipairs(...) do
  local pieces = {}
  while rest ~= '' do
    local piece = text.piece(rest, HOW)
    table.insert(pieces, piece)
    rest = text.rest(rest, piece)
  end
  table.insert(found, pieces)
end
return found
"""
COLUMNS = """
local text, found = require('codespec.text'), {}
for _, each in ipairs(...) do
  local line, bytes = unpack(each)
  local columns = {}
  for _, encoding in ipairs({ 'utf-8', 'utf-16', 'utf-32' }) do
    local column = text.length(line:sub(1, bytes), encoding)
    table.insert(columns, { column, text.byte_column(line, column, encoding), text.byte_column(line, 999, encoding) })
  end
  table.insert(found, columns)
end
return found
"""


def texts(seed: int, count: int = 300) -> list[str]:
    """Return random texts of code characters and others."""
    chance = random.Random(seed)
    return ["".join(chance.choices(ALPHABET, k=chance.randint(1, 12))) for _ in range(count)]


@pytest.mark.parametrize("how", ["all", "word", "line", "block"])
def test_pieces_add_up(editor: Editor, how: str) -> None:
    whole = texts(1)
    for text, pieces in zip(whole, editor.lua(PIECES.replace("HOW", repr(how)), whole), strict=True):
        assert "".join(pieces) == text and all(pieces)
        if how == "all":
            assert pieces == [text]
        if how == "line":
            assert all("\n" not in piece.lstrip("\n") for piece in pieces)
        if how == "word":
            assert all(len(piece.split()) <= 1 for piece in pieces)


def test_columns_are_there_and_back(editor: Editor) -> None:
    lines = [text.replace("\n", "") for text in texts(2)]
    chance = random.Random(3)
    asked = [(line, len(line[: chance.randint(0, len(line))].encode())) for line in lines]
    for (line, size), columns in zip(asked, editor.lua(COLUMNS, asked), strict=True):
        before = line.encode()[:size].decode()
        units = [size, len(before.encode("utf-16-le")) // 2, len(before)]
        assert [column for column, _, _ in columns] == units
        assert all(byte == size for _, byte, _ in columns)
        assert all(end == len(line.encode()) for _, _, end in columns)


BLOCKS = {
    "a line": ("a + b\nc", "", "a + b"),
    "a body": ("f(x):\n        a\n\n        b\n    c = 1", "    ", "f(x):\n        a\n\n        b"),
    "a body and what closes it": (" {\n  a;\n}\nb;", "", " {\n  a;\n}"),
    "a body and its end": (" do\n    a\n  end\n  b", "  ", " do\n    a\n  end"),
    "a word that begins like an end": (" do\n    a\n  endless = 1", "  ", " do\n    a"),
    "arguments": ("(\n    a,\n)\nb", "", "(\n    a,\n)"),
    "a body to the end": (":\n    a\n    b", "", ":\n    a\n    b"),
    "what closes no body of its own": ("a\n}\nb", "", "a"),
    "a new line first": ("\n    a\n    b\nc", "    ", "\n    a"),
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_is_a_line_and_what_belongs_to_it(editor: Editor, kind: str) -> None:
    rest, indent, wanted = BLOCKS[kind]
    assert editor.lua("return require('codespec.text').piece(...)", rest, "block", indent) == wanted
