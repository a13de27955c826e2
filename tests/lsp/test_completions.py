"""Suggestions: followed, accepted and dismissed by edits, and shown as items of the protocol."""

from __future__ import annotations

import pytest
from codespec_lsp.buffer import Buffer, Edit, TextPosition
from codespec_lsp.completions import (
    MAX_DISMISSED,
    MAX_PLACES,
    Acceptance,
    CachedCompletion,
    CompletionCache,
    Dismissals,
    EditRange,
    Suggestion,
    TypedPrefix,
    completion_list,
    inline_item,
    is_accepted,
    one_line_label,
)
from codespec_lsp.prompt import TextAround
from codespec_lsp.status import Counters
from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types

from tests.lsp.conversation import URI, replacement, run
from tests.lsp.fake_daemon import talking

TEXT = "append(item)\n    return self"


def suggested(number: int, text: str) -> Suggestion:
    return Suggestion(CachedCompletion(TextAround("u", "", ""), text, number=number), text, text)


edits = st.tuples(st.integers(0, 12), st.integers(0, 4), st.text(alphabet="ab(\n", max_size=4))


@given(before=st.text("ab", max_size=6), text=st.text("ab(\n", max_size=12), steps=st.lists(edits, max_size=8))
def test_followed_is_what_stands_there(before: str, text: str, steps: list[tuple[int, int, str]]) -> None:
    """After any edit, a suggestion that is not lost matches the document, and the cache returns exactly the rest.

    A lost one is found again only if its text is there again.
    """
    document, typed_prefix = before + "|", TypedPrefix(len(before))
    cache, known = CompletionCache(), CachedCompletion(TextAround("u", before, "|"), text, done=True)
    cache.add([known])
    for start, length, inserted in steps:
        start = min(start, len(document) - 1)
        end = min(start + length, len(document) - 1)
        edit = Edit(start, document[start:end], inserted)
        document = document[:start] + inserted + document[end:]
        piece = typed_prefix.follow(edit, text)
        assert text.find(piece) >= 0
        if not typed_prefix.lost:
            assert document[typed_prefix.start : typed_prefix.tip] == text[: typed_prefix.typed]
    prefix = document[:-1]
    found = cache.find(TextAround("u", prefix, "|"))
    typed = prefix[len(before) :]
    stands = prefix.startswith(before) and text.startswith(typed) and (len(typed) < len(text) or not text)
    assert found == ([known] if stands else [])
    assert not stands or known.prompt.rest(TextAround("u", prefix, "|"), text) == text[len(typed) :]


@given(cuts=st.lists(st.integers(1, 6), min_size=1, max_size=10))
def test_a_text_put_in_piece_by_piece_is_counted_once(cuts: list[int]) -> None:
    counters = Counters()
    acceptance = Acceptance(counters)
    acceptance.show("u", [suggested(1, TEXT)], 5)
    at, by_hand = 0, 0
    for size in cuts:
        piece = TEXT[at : at + size]
        if piece:
            acceptance.edited("u", Edit(5 + at, "", piece))
            by_hand += 0 if is_accepted(piece) else len(piece)
        at += len(piece)
    assert counters.accepted_characters == at - by_hand
    assert counters.accepted + counters.partly_accepted == (1 if counters.accepted_characters else 0)
    assert counters.shown == 1


@pytest.mark.parametrize(
    ("piece", "accepted"),
    [("a", False), ("ap", True), ("()", False), ("\n    ", False), ("\n  x", True), ("(i", True), ('""', False)],
)
def test_what_a_key_can_not_put_in_was_accepted(piece: str, accepted: bool) -> None:
    assert is_accepted(piece) is accepted


def counted(*steps: object) -> tuple[int, int, int]:
    """Return the counts of whole acceptances, partial ones, and characters."""
    counters = Counters()
    acceptance = Acceptance(counters)
    acceptance.show("u", [suggested(1, TEXT), suggested(2, "other")], 5)
    for step in steps:
        if isinstance(step, Edit):
            acceptance.edited("u", step)
        elif isinstance(step, tuple):
            acceptance.accept(*step)
        else:
            acceptance.accept(str(step))
    return counters.accepted, counters.partly_accepted, counters.accepted_characters


WHOLE = Edit(5, "", TEXT)
REPLACED = Edit(0, "xs = ", "xs = " + TEXT)  # Neovim's way: replace the line up to the cursor by itself and the text
WORD = Edit(5, "", "append")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([WHOLE], (1, 0, 28)),
        ([REPLACED], (1, 0, 28)),
        (["1"], (1, 0, 28)),
        ([WHOLE, "1"], (1, 0, 28)),
        (["1", WHOLE], (1, 0, 28)),
        ([WORD], (0, 1, 6)),
        ([WORD, ("1", 6)], (0, 1, 6)),
        ([("1", 6), WORD, Edit(11, "", "(item)")], (0, 1, 12)),
        ([WORD, Edit(11, "", TEXT[6:])], (1, 0, 28)),
        ([Edit(5, "", "a"), Edit(6, "", "p")], (0, 0, 0)),
        ([Edit(5, "", "a"), Edit(6, "", TEXT[1:])], (1, 0, 27)),
        ([Edit(5, "", "zz"), WHOLE], (0, 0, 0)),
        ([Edit(5, "", "other")], (1, 0, 5)),
        ([WORD, Edit(5, "append", ""), WORD], (0, 1, 6)),
        (["none", ("none", 3), ("1", 0)], (0, 0, 0)),
    ],
)
def test_however_it_is_told_it_counts_once(steps: list[object], expected: tuple[int, int, int]) -> None:
    assert counted(*steps) == expected


def test_a_text_that_grew_is_the_same_suggestion() -> None:
    counters = Counters()
    acceptance = Acceptance(counters)
    acceptance.show("u", [suggested(1, "append")], 5)
    acceptance.show("u", [suggested(1, TEXT)], 5)
    acceptance.edited("u", WHOLE)
    assert (counters.shown, counters.accepted, counters.as_dict()["acceptance"]) == (1, 1, 1.0)


@pytest.mark.parametrize(
    ("edit", "lost"),
    [
        (Edit(13, "nd", ""), False),
        (Edit(10, "app", ""), True),
        (Edit(8, "(xappen", ""), True),
        (Edit(14, "d", "x"), True),
        (Edit(2, "ab", ""), True),
    ],
    ids=["its end", "its middle", "more than was typed", "replaced", "elsewhere"],
)
def test_only_the_end_of_what_was_typed_can_be_taken_back(edit: Edit, lost: bool) -> None:
    typed_prefix = TypedPrefix(10)
    typed_prefix.follow(Edit(10, "", "appen"), TEXT)
    typed_prefix.follow(edit, TEXT)
    assert (typed_prefix.lost, typed_prefix.tip) == (lost, 15 if lost else 13)


HERE = TextAround(URI, "import os\nx = ", "\n")
TIP = len(HERE.prefix)


def dismiss(dismissals: Dismissals, prompt: TextAround = HERE, text: str = "z") -> None:
    """Show a suggestion, then type other text."""
    dismissals.show(prompt, "value", len(prompt.prefix))
    dismissals.edited(prompt.uri, Edit(len(prompt.prefix), "", text))


def made() -> tuple[Dismissals, Counters]:
    counters = Counters()
    return Dismissals(counters), counters


def test_three_in_a_row_are_enough() -> None:
    dismissals, counters = made()
    for count in range(MAX_DISMISSED):
        assert not dismissals.is_quiet(HERE), count
        dismiss(dismissals)
    assert dismissals.is_quiet(HERE) and counters.dismissed == MAX_DISMISSED


def test_another_place_and_another_document_are_not_quiet() -> None:
    dismissals, _ = made()
    for _ in range(MAX_DISMISSED):
        dismiss(dismissals)
    assert not dismissals.is_quiet(TextAround(URI, "import os\ny = ", "\n"))
    assert not dismissals.is_quiet(TextAround(URI, HERE.prefix, ")\n"))
    assert not dismissals.is_quiet(TextAround("file:///b.py", HERE.prefix, HERE.suffix))
    assert dismissals.is_quiet(TextAround(URI, "# one more line above\n" + HERE.prefix, HERE.suffix)), (
        "lines above may move"
    )


def test_typing_along_agrees() -> None:
    dismissals, counters = made()
    for text in ("z", "z", "v", "z", "z"):
        dismiss(dismissals, text=text)
    assert not dismissals.is_quiet(HERE) and counters.dismissed == 4


def test_a_bracket_that_the_editor_closes_agrees() -> None:
    dismissals, counters = made()
    dismissals.show(HERE, "(a, b)", TIP)
    dismissals.edited(URI, Edit(TIP, "", "()"))
    assert counters.dismissed == 0


def test_deleting_and_editing_elsewhere_dismiss_nothing() -> None:
    dismissals, counters = made()
    for edit in (Edit(TIP - 1, " ", ""), Edit(0, "", "z"), Edit(TIP, "\n", "z")):
        dismissals.show(HERE, "value", TIP)
        dismissals.edited(URI, edit)
    assert counters.dismissed == 0


def test_a_suggestion_that_another_one_replaces_was_dismissed() -> None:
    dismissals, counters = made()
    for text in ("val", "value", "other"):
        dismissals.show(HERE, text, TIP)
    assert counters.dismissed == 1, "one that grows is still the same"


def test_asking_forgives_and_closing_forgets() -> None:
    dismissals, _ = made()
    for _ in range(MAX_DISMISSED):
        dismiss(dismissals)
    dismissals.forgive(HERE)
    assert not dismissals.is_quiet(HERE)
    for _ in range(MAX_DISMISSED):
        dismiss(dismissals)
    dismissals.close(URI)
    assert not dismissals.is_quiet(HERE)


def test_what_is_remembered_is_bounded() -> None:
    dismissals, _ = made()
    for _ in range(MAX_DISMISSED):
        dismiss(dismissals)
    for number in range(MAX_PLACES):
        dismiss(dismissals, TextAround(URI, f"x{number} = ", "\n"))
    assert not dismissals.is_quiet(HERE)


def test_the_server_keeps_quiet_until_it_is_asked() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("x = \n")
            fake.script = ["value"]
            version = 1
            for _ in range(MAX_DISMISSED):
                assert await client.texts(0, 4) == ["x = value"]
                client.type(version + 1, 0, 4, "7")
                client.change(version + 2, replacement(0, 4, 0, 5, ""))
                version += 2
            asked = len(fake.asked)
            assert await client.texts(0, 4) == [] and len(fake.asked) == asked, "and it asks no daemon"
            counters = (await client.status())["counters"]
            assert (counters["dismissed"], counters["keptQuiet"]) == (3, 1)
            reply = (await client.ask(0, 4, trigger=1)[1])["result"]
            assert reply["items"], "an explicit request is answered"
            assert await client.texts(0, 4) == ["x = value"], "and from then on the others are"

    run(scenario())


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
