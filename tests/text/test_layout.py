"""Prompt parts that stay stable while typing: windows, the split between prefix and suffix, snippets of other files."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.api.types import Owner
from codespec.text.fim import (
    MAX_DOCUMENTS,
    MAX_SNIPPET_AGE_S,
    MAX_TAIL,
    TYPING_PAUSE_S,
    Layout,
    Layouts,
    TokenPrompt,
    build_prompt,
    prefix_window,
)
from tests.text.test_fim import template_of
from tests.toy_tokenizers import held_out_texts, toy_tokenizer

TEXT = held_out_texts()[0] + held_out_texts()[1]
BUDGET = 120
TOKENIZER = toy_tokenizer("llama3")
STARTS = st.integers(2000, 9000)
# (characters appended, or deleted if negative)
EDITS = st.lists(st.integers(-30, 60), min_size=1, max_size=25)
KINDS = st.sampled_from(["llama3", "llama2", "bytes"])


@given(STARTS, EDITS, KINDS, st.integers(40, 200))
def test_a_window_is_the_fresh_encoding_of_an_end_of_the_text(
    end: int, edits: list[int], kind: str, budget: int
) -> None:
    tokenizer, layout = toy_tokenizer(kind), Layout()
    for edit in edits:
        end += edit
        window = prefix_window(tokenizer, TEXT[:end], budget, layout)
        assert window.text == TEXT[window.start : end] and window.ids == tokenizer.encode(window.text)
        assert 0 < len(window.ids) <= budget and window.cut


@given(STARTS, st.lists(st.integers(1, 60), min_size=1, max_size=25), st.integers(40, 200))
def test_while_text_is_appended_the_window_moves_in_steps(end: int, edits: list[int], budget: int) -> None:
    layout, last = Layout(), None
    for edit in edits:
        end += edit
        window = prefix_window(TOKENIZER, TEXT[:end], budget, layout)
        if last is not None and window.start != last.start:
            assert window.start > last.start
            assert len(TOKENIZER.encode(TEXT[last.start : end])) > budget, "it moves only when it is full"
            assert len(window.ids) <= budget * 3 // 4 + 1, "and frees a quarter"
            assert TEXT[window.start - 1] == "\n" or "\n" not in TEXT[window.start : window.start + budget // 4]
        last = window


@given(STARTS, EDITS, st.integers(1500, 3000))
def test_a_client_that_sends_the_last_part_gets_the_same_windows(end: int, edits: list[int], sent: int) -> None:
    whole, part = Layout(), Layout()
    for edit in edits:
        end += edit
        offset = max(0, end - sent)
        first = prefix_window(TOKENIZER, TEXT[:end], BUDGET, whole)
        second = prefix_window(TOKENIZER, TEXT[offset:end], BUDGET, part, offset)
        assert (second.text, second.start + offset) == (first.text, first.start)


@given(STARTS, st.lists(st.tuples(st.integers(0, 500), st.text("ab\n", max_size=9)), max_size=12))
def test_edits_further_up_move_no_window(end: int, edits: list[tuple[int, str]]) -> None:
    layout, text = Layout(), TEXT[:end]
    before = prefix_window(TOKENIZER, text, BUDGET, layout)
    for place, inserted in edits:
        text = text[:place] + inserted + text[place + 4 :]
        assert prefix_window(TOKENIZER, text, BUDGET, layout).text == before.text


def test_who_jumps_away_and_back_finds_the_window_again() -> None:
    layout = Layout()
    ends = [4000, 4700, 4010, 9000, 4020, 2000, 9010]
    found = [prefix_window(TOKENIZER, TEXT[:end], BUDGET, layout).start for end in ends]
    assert found[0] == found[2] == found[4] and found[3] == found[6]
    fresh = [prefix_window(TOKENIZER, TEXT[:end], BUDGET).start for end in (4010, 4020)]
    assert len({found[0], *fresh}) <= 2


class TestPrompts:
    """Prefix, suffix and snippets of one document, keystroke by keystroke."""

    snippets = (("b.py", "b = 1\n" * 3), ("c.py", "c = 2\n" * 3))

    def prompts(self, layout: Layout | None, end: int, *, order: str = "spm", **more: object) -> TokenPrompt:
        template = replace(template_of(TOKENIZER), order=order)  # type: ignore[arg-type]
        values = {"suffix": TEXT[6000:9000], "budget": 300, "path": "a.py", "layout": layout, **more}
        return build_prompt(TOKENIZER, template, prefix=TEXT[:end], **values)  # type: ignore[arg-type]

    def shared(self, first: TokenPrompt, second: TokenPrompt) -> float:
        """Return the share of the second prompt that equals the beginning of the first."""
        same = [a == b for a, b in zip(first.ids, second.ids, strict=False)]
        return (same.index(False) if False in same else len(same)) / len(second.ids)

    @pytest.mark.parametrize("order,least", [("spm", 0.95), ("suffix_first", 0.95), ("psm", 0.8)])
    def test_a_keystroke_moves_only_the_end(self, order: str, least: float) -> None:
        layout, rates = Layout(), []
        before = self.prompts(layout, 5000, order=order)
        for end in range(5001, 5200):
            prompt = self.prompts(layout, end, order=order)
            rates.append(self.shared(before, prompt))
            assert len(prompt.ids) <= 300
            before = prompt
        steps = sum(rate < least for rate in rates)
        assert steps <= 2 and sorted(rates)[2] >= least

    def test_without_a_layout_nothing_is_remembered(self) -> None:
        alone = self.prompts(None, 5300)
        self.prompts(None, 5100)
        assert self.prompts(None, 5300) == alone == self.prompts(Layout(), 5300)

    def test_new_snippets_wait_while_somebody_types(self) -> None:
        layout = Layout()
        first = self.prompts(layout, 5000, snippets=self.snippets)
        layout.now = TYPING_PAUSE_S - 1
        second = self.prompts(layout, 5001, snippets=self.snippets[::-1])
        assert self.shared(first, second) > 0.95
        layout.now += TYPING_PAUSE_S + 1
        assert self.shared(second, self.prompts(layout, 5002, snippets=self.snippets[::-1])) < 0.2

    def test_but_not_for_ever(self) -> None:
        layout, changes = Layout(), []
        before = self.prompts(layout, 5000, snippets=self.snippets)
        for second in range(1, int(2.5 * MAX_SNIPPET_AGE_S), 3):
            layout.now = second
            prompt = self.prompts(layout, 5000, snippets=(("b.py", f"b = {second}\n"),))
            changes.append(self.shared(before, prompt) < 0.9)
            before = prompt
        assert sum(changes) == 2

    @pytest.mark.parametrize("change", ["warm-up", "jump", "none", "first", "path"])
    def test_new_snippets_come_at_once_where_most_is_read_anew(self, change: str) -> None:
        layout = Layout()
        self.prompts(layout, 5000, snippets=() if change == "first" else self.snippets)
        asked: dict[str, object] = {"snippets": () if change == "none" else self.snippets[:1]}
        asked |= {"warm-up": {"renew": True}, "jump": {"suffix": TEXT[5500:9000]}, "path": {"path": "x.py"}}.get(
            change, {}
        )
        self.prompts(layout, 5001, **asked)
        assert (layout.block.snippets, layout.block.path) == (asked["snippets"], asked.get("path", "a.py"))

    def test_what_did_not_fit_together_is_tried_again_only_with_room_to_spare(self) -> None:
        """Otherwise typing and deleting at that size would change the whole prompt each time."""
        layout, suffix = Layout(), TEXT[6000:6400]
        edge = bisect_left(range(3000), True, key=lambda end: self.prompts(None, end, suffix=suffix).trimmed) - 1
        kept = [self.prompts(layout, end, suffix=suffix).trimmed for end in (edge, edge + 9, edge, edge + 9, edge - 9)]
        assert kept == [False, True, True, True, True]
        assert not self.prompts(layout, edge - 300, suffix=suffix).trimmed


class TestTails:
    """In prefix-suffix-middle order, the end of the prefix stands behind the suffix, so that typing only appends."""

    code = "\n\ndef area(self, scale):\n    width = self.width * scale\n    return width * self.height\n\n\nx = 1\n"

    def typed(self, layout: Layout, end: int, suffix: str = TEXT[6000:6400], **more: object) -> TokenPrompt:
        above = TEXT[: TEXT.index("\n", 3000) + 1]
        text, template = above + self.code * 4, replace(template_of(TOKENIZER), order="psm")
        values = {"suffix": suffix, "budget": 2000, "layout": layout, "append": True, **more}
        return build_prompt(TOKENIZER, template, prefix=text[: len(above) + end], **values)  # type: ignore[arg-type]

    def unread(self, before: TokenPrompt, after: TokenPrompt) -> int:
        """Return the ids of the second prompt after its common beginning with the first."""
        same = [a == b for a, b in zip(before.ids, after.ids, strict=False)]
        return len(after.ids) - (same.index(False) if False in same else len(same))

    def tail(self, prompt: TokenPrompt) -> bytes:
        return TOKENIZER.decode_bytes(prompt.ids[prompt.ids.index(TOKENIZER.vocab["<|fim_middle|>"]) + 1 :])

    @pytest.mark.parametrize("heal", [True, False])
    def test_a_key_reads_few_tokens_even_one_that_begins_a_line(self, heal: bool) -> None:
        layout, counts = Layout(), list[int]()
        before = self.typed(layout, 0, heal=heal)
        for end in range(1, 4 * len(self.code)):
            prompt = self.typed(layout, end, heal=heal)
            counts.append(self.unread(before, prompt))
            assert len(TOKENIZER.encode_inside(self.tail(prompt).decode())) <= MAX_TAIL
            before = prompt
        moves = [count for count in counts if count > 8]
        assert 2 <= len(moves) <= 8 and sum(counts) <= 6 * len(counts), counts

    def test_accepted_text_is_already_read(self) -> None:
        """What the model wrote follows its prompt, so the cache slot holds both."""
        layout, start, end = Layout(), self.code.index(" self.w"), self.code.index("\n    return")
        first, written = self.typed(layout, start, heal=False), TOKENIZER.encode_inside(self.code[start:end])
        second = self.typed(layout, end, heal=False)
        assert self.unread(replace(first, ids=[*first.ids, *written]), second) <= 2

    def test_deleting_and_typing_again_reads_no_more_than_typing(self) -> None:
        layout = Layout()
        self.typed(layout, 0)
        before = self.typed(layout, 60)
        for end in (59, 40, 41, 60, 75, 60):
            after = self.typed(layout, end)
            assert self.unread(before, after) <= MAX_TAIL
            assert self.typed(Layout(), end).context == after.context
            before = after

    def test_a_new_right_side_begins_at_the_cursors_line(self) -> None:
        layout, end = Layout(), self.code.index("th * scale")
        self.typed(layout, 0)
        assert self.tail(self.typed(layout, end)).count(b"\n") == 3
        assert self.tail(self.typed(layout, end, suffix=")" + TEXT[6000:6400])) == b"    width = self.wid"
        assert self.tail(self.typed(layout, end + 2, suffix=")" + TEXT[6000:6400])) == b"    width = self.width"

    def test_a_pause_shortens_a_long_tail_and_keeps_a_short_one(self) -> None:
        layout, end = Layout(), len(self.code) + self.code.index("th * scale")
        self.typed(layout, 0)
        near = self.typed(layout, 40)
        assert self.unread(near, self.typed(layout, 40, renew=True)) == 0
        far = self.typed(layout, end)
        assert self.tail(far).count(b"\n") > 4
        pause = self.typed(layout, end, renew=True)
        assert self.tail(pause) == b"    width = self.wid" and self.unread(far, pause) > MAX_TAIL // 2
        assert self.unread(pause, self.typed(layout, end + 1)) <= 2

    def test_without_a_line_before_the_cursor_the_prompt_is_the_plain_one(self) -> None:
        template = replace(template_of(TOKENIZER), order="psm")
        layout = Layout()
        for prefix in ("", "imp", "import os", "x = " + "1 + " * 200 + "a"):
            prompt = build_prompt(
                TOKENIZER, template, prefix=prefix, suffix="\n", budget=300, layout=layout, append=True
            )
            assert (self.tail(prompt) == b"") is ("1 +" not in prefix and " " not in prefix)


def test_layouts_are_a_documents_own_and_bounded() -> None:
    seconds = iter(range(10_000))
    layouts = Layouts(lambda: next(seconds))

    def of(document: str, scope: str = "") -> Layout:
        return layouts.of(Owner(scope, document))

    assert of("a") is of("a") is not of("b")
    assert of("") is not of("") and len(layouts._layouts) == 2
    assert of("a").now > of("b").used
    assert of("a", "another's") is not of("a") and len(layouts._layouts) == 3
    kept = of("a")
    for number in range(MAX_DOCUMENTS - 1):
        of(f"other {number}")
    assert of("a") is kept and len(layouts._layouts) == MAX_DOCUMENTS
    for number in range(MAX_DOCUMENTS):
        of(f"more {number}")
    assert of("a") is not kept and len(layouts._layouts) == MAX_DOCUMENTS
