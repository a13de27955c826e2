"""Clients that send the whole text for each key (Kakoune, vim-lsp, Sublime with some settings), in a huge file."""

from __future__ import annotations

import time
from itertools import takewhile

from codespec_lsp.buffer import Edit
from hypothesis import given
from hypothesis import strategies as st

SOURCE = st.text("ab\n", max_size=12)


def test_the_least_edit_of_a_whole_text_is_found_without_a_loop() -> None:
    before = "value = call(argument, 1)\n" * 40_000
    after = before[:-1] + "x\n"
    began = time.process_time()
    sum(1 for _ in before)
    loop, began = time.process_time() - began, time.process_time()
    assert Edit(0, before, after).least() == Edit(len(before) - 1, "", "x")
    assert time.process_time() - began < loop / 2


@given(SOURCE, SOURCE, SOURCE, SOURCE)
def test_the_least_edit_begins_after_what_is_the_same(start: str, removed: str, text: str, end: str) -> None:
    whole = Edit(3, start + removed + end, start + text + end)
    least = whole.least()
    same = least.start - 3
    assert same == sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(whole.removed, whole.text, strict=False))
    )
    assert whole.removed[:same] + least.text + whole.removed[same + len(least.removed) :] == whole.text
