"""Completion items of both protocols: the result is the suggestion itself, and menus can filter by the typed text."""

from __future__ import annotations

import pytest
from codespec_lsp.buffer import Buffer, TextPosition
from codespec_lsp.completions import (
    CachedCompletion,
    EditRange,
    Suggestion,
    completion_list,
    inline_item,
    one_line_label,
)
from codespec_lsp.prompt import TextAround
from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types

words = st.text(st.sampled_from("ab_é日"), max_size=4)
lines = st.text(st.sampled_from("ab (=😀é\t"), max_size=8)
rests = st.text(st.sampled_from("ab(\n 😀é:"), min_size=1, max_size=12).filter(lambda rest: bool(rest.strip()))


def put_in(buffer: Buffer, edit: types.TextEdit) -> str:
    start, end = (buffer.position(place.line, place.character) for place in (edit.range.start, edit.range.end))
    buffer.replace(start, end, edit.new_text)
    return buffer.text


@given(before=lines, word=words, rest=rests, after=lines, above=st.sampled_from(["", "x = 1\n"]))
def test_both_items_put_in_exactly_the_suggestion(before: str, word: str, rest: str, after: str, above: str) -> None:
    typed = f"{before} {word}"
    text = f"{above}{typed}{after}\n"
    row, here = above.count("\n"), len(typed)

    def target(column: int) -> EditRange:
        buffer = Buffer(text)
        start, end = (types.Position(row, buffer.character(TextPosition(row, at))) for at in (column, here))
        return EditRange(types.Range(start, end), typed[column:], "\n")

    offer = Suggestion(CachedCompletion(TextAround("file:///a", "", ""), rest), rest, rest)
    whole = above + typed + rest + after + "\n"
    inline = inline_item(offer, target(0))
    assert inline.range is not None and isinstance(inline.insert_text, str)
    assert put_in(Buffer(text), types.TextEdit(inline.range, inline.insert_text)) == whole
    (item,) = completion_list([offer], target(here - len(word))).items
    assert isinstance(item.text_edit, types.TextEdit) and put_in(Buffer(text), item.text_edit) == whole
    assert item.filter_text is not None and item.filter_text.startswith(word) and item.label
    assert "\n" not in item.label and len(item.filter_text) > len(word)


@pytest.mark.parametrize(
    ("typed", "rest", "shown"),
    [
        ("fo", "o(a)\n    b", "foo(a)"),
        ("return", " first  ", "return first"),
        ("", "  x = 1\ny", "x = 1"),
        ("else", "\n\n    pass\n", "else pass"),
        ("", "\n    pass", "pass"),
    ],
)
def test_a_label_is_one_line(typed: str, rest: str, shown: str) -> None:
    assert one_line_label(typed, rest) == shown
