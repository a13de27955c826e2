"""Counts of an evaluation: an oracle gets everything right, garbage nothing, and the sums agree."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from codespec_grammars import ContextTracker
from codespec_lab.corpus.documents import Document
from codespec_lab.corpus.gaps import LOOP_BYTES, LOOP_TIMES, Excerpt, Gap, is_loop, line_gaps, spread
from codespec_lab.progress import ProgressBar
from codespec_lab.training.scores import (
    DRAFT_LENGTHS,
    DRAFTED_TOKENS,
    TIMED,
    WARM_UP,
    RateTable,
    bits_per_byte,
    drafted_request,
    loop_share,
    measure_acceptance,
    ms_per_token,
    score_infilling,
)
from hypothesis import given
from hypothesis import strategies as st

from codespec.api.types import Completion, CompletionRequest, RoundEvent, Stats
from tests.pairs import Garbage, Oracle, Silent, build, model
from tests.parrot import SURE, Parrot, Prompter, parrot_engine
from tests.toy_tokenizers import toy_tokenizer

BLOCK = Gap("p", "a.py", "python", 9, "def f(x):\n    ", "y = x\n    return y", "\n")
LINE = Gap("p", "a.js", "javascript", 3, "let a = ", "b + c;  ", "\n")
GAPS = {"python": [BLOCK] * 9, "javascript": [LINE] * 2}


def quiet(total: int = 1) -> ProgressBar:
    return ProgressBar("test", total, io.StringIO())


def writer(write: Callable[[Gap], str]) -> Callable[[Sequence[CompletionRequest]], list[Completion]]:
    """Completes known prefixes with the result of `write`."""
    known = {gap.prefix: gap for found in GAPS.values() for gap in found}

    def complete(requests: Sequence[CompletionRequest]) -> list[Completion]:
        assert all(request.speculate is False for request in requests)
        return [Completion(write(known[request.prefix]), (), "stop", Stats(notes=["message"])) for request in requests]

    return complete


@pytest.mark.parametrize(
    ("write", "exact", "first"),
    [
        (lambda gap: gap.answer, {"python": 9, "javascript": 2}, {"python": 9, "javascript": 2}),
        (lambda gap: gap.answer.rstrip() + " \n", {"python": 9, "javascript": 2}, {"python": 9, "javascript": 2}),
        (lambda gap: " " + gap.answer, {"python": 0, "javascript": 0}, {"python": 0, "javascript": 0}),
        (lambda gap: "y = x\n    pass", {"python": 0, "javascript": 0}, {"python": 9, "javascript": 0}),
        (lambda gap: "", {"python": 0, "javascript": 0}, {"python": 0, "javascript": 0}),
    ],
    ids=["oracle", "white space behind", "white space before", "first line", "nothing"],
)
def test_infilling_counts_what_is_right(
    write: Callable[[Gap], str], exact: dict[str, int], first: dict[str, int]
) -> None:
    filled = score_infilling(writer(write), GAPS, "block", quiet())
    assert {row: rate.amount for row, rate in filled.exact.items()} == exact
    assert {row: rate.amount for row, rate in filled.first_line.items()} == first
    assert filled.exact.all.count == len(filled.outcomes) == 11 and sum(filled.outcomes) == sum(exact.values())
    assert filled.notes == ["message"]
    assert (filled.bytes_right.all.value == 1.0) == (filled.exact.all.value == 1.0)


def test_bytes_are_right_up_to_the_first_wrong_one() -> None:
    filled = score_infilling(writer(lambda gap: gap.answer[:3] + "é" + gap.answer[4:]), GAPS, "line", quiet())
    assert filled.bytes_right.all.amount == 3 * 11
    assert filled.bytes_right["javascript"].count == 2 * len("b + c;")


@given(st.binary(max_size=200) | st.lists(st.sampled_from([b"a", b"bc", b"d" * 9])).map(b"".join))
def test_a_loop_is_the_same_bytes_three_times(text: bytes) -> None:
    pieces = {text[i : i + LOOP_BYTES] for i in range(len(text) - LOOP_BYTES + 1)}
    assert is_loop(text) == any(text.count(piece) >= LOOP_TIMES for piece in pieces)


@given(st.binary(min_size=LOOP_BYTES, max_size=LOOP_BYTES), st.binary(max_size=9), st.binary(max_size=9))
def test_a_planted_loop_is_found(piece: bytes, first: bytes, second: bytes) -> None:
    assert is_loop(piece + first + piece + second + piece)
    assert not is_loop(piece[:-1] * (LOOP_TIMES - 1))


def test_loop_share_counts_by_row() -> None:
    share = loop_share(writer(lambda gap: gap.path * 20 if gap is BLOCK else gap.path), GAPS, quiet())
    assert {row: (rate.amount, rate.count) for row, rate in share.items()} == {"python": (9, 9), "javascript": (0, 2)}


@pytest.fixture
def places(documents: list[Document]) -> dict[str, list[Gap]]:
    gaps = spread(documents, 3, line_gaps(0))
    return {"one": gaps[:2], "two": gaps[2:]}


@pytest.mark.parametrize("length", DRAFT_LENGTHS)
def test_acceptance_of_an_oracle_is_the_draft_length(length: int, places: dict[str, list[Gap]]) -> None:
    target = model("llama", "gpt2")
    requests = [drafted_request(gap) for found in places.values() for gap in found]
    plain = build(target, Silent()).complete(requests)
    found = measure_acceptance(build(target, Oracle(target, requests, plain, as_ids=True)), places, length, quiet())
    assert found.by_row.all.value == length
    rounds = math.ceil(
        (DRAFTED_TOKENS - length) / (length + 1)
    )  # the rounds that begin with room for more than `length` tokens
    assert {row: rate.count for row, rate in found.by_row.items()} == {"one": 2 * rounds, "two": rounds}


def test_acceptance_of_garbage_is_next_to_nothing_and_sums_agree(places: dict[str, list[Gap]]) -> None:
    engine = build(model("llama", "gpt2"), Garbage())
    found = measure_acceptance(engine, places, 4, quiet())
    assert engine.metrics.totals.drafted > 0
    assert found.by_row.all.value is not None and found.by_row.all.value < 0.1
    assert (found.by_row.all.amount, found.by_row.all.count) == (
        found.by_context.all.amount,
        found.by_context.all.count,
    )


def test_acceptance_knows_the_context_of_each_round() -> None:
    engine = build(model("llama", "gpt2"), Silent())
    comment = Gap("p", "a.py", "python", 1, "# a comment that goes", "", "")
    other = Gap("p", "a.xyz", "no such language", 1, "# a comment that goes", "", "")
    found = measure_acceptance(engine, {"one": [comment], "two": [other]}, 2, quiet())
    assert next(iter(found.by_context)) == "comment"
    assert found.by_context["unknown"].count == found.by_row["two"].count == DRAFTED_TOKENS - 2


def test_contexts_are_those_of_the_text_so_far() -> None:
    text = "# first of all\nname = f('some words', [1, 2])  # and so on\nother = g(name)  # to its end\n"
    gap = Gap("p", "a.py", "python", 1, text[:4], "", "")
    parrot = Parrot(toy_tokenizer("gpt2"), text)
    engine = parrot_engine(parrot, Prompter(parrot, sizes=(3, 1, 2)))
    found = measure_acceptance(engine, {"x": [gap]}, 3, quiet())
    expected, written = Counter[str](), gap.before
    for event in engine.stream(drafted_request(gap)):
        if isinstance(event, RoundEvent):
            expected[ContextTracker("python", written.encode()).context().context.value] += 1
            written += event.accepted_text + event.target_text
    assert written == text and len(expected) > 3 and found.by_context.all.amount > 10
    assert {name: rate.count for name, rate in found.by_context.items()} == expected


class Standing(Parrot):
    """A repeating model whose slots need no memory."""

    def allocate(self, slots: int, capacity: int) -> None:
        """Clear the slot."""
        self.cache.ids[0].clear()  # type: ignore[union-attr, attr-defined]


def test_bits_per_byte_of_known_text_are_those_of_its_probability() -> None:
    lead, body = "def f(a):\n", "    return a + 1  # é\n"
    parrot = Standing(toy_tokenizer("bytes"), lead + body)
    sure = math.log2(1 + (len(parrot.token_bytes) - 1) * math.exp(-SURE))
    known = bits_per_byte(parrot, {"x": [Excerpt(lead, body)] * 3}, quiet())
    assert known["x"].value == pytest.approx(sure, rel=1e-3)
    assert known["x"].count == 3 * len(body.encode())
    other = bits_per_byte(parrot, {"x": [Excerpt(lead, "y" + body)]}, quiet())
    assert other["x"].value == pytest.approx(SURE / math.log(2), rel=0.05)


def test_every_vocabulary_is_asked_for_the_same_bytes(long_text: str) -> None:
    excerpt = Excerpt(long_text[:200], long_text[200:1200])
    for kind in ("gpt2", "llama2", "unigram"):
        rate = bits_per_byte(model("llama", kind), {"x": [excerpt]}, quiet()).all
        assert rate.count == len(excerpt.body.encode()) and rate.value is not None and rate.value > 1


def test_what_a_short_model_cannot_read_is_not_counted(long_text: str) -> None:
    parrot = Standing(toy_tokenizer("bytes"), long_text)
    rate = bits_per_byte(parrot, {"x": [Excerpt(long_text[:200], long_text[200:3000])]}, quiet()).all
    assert rate.count == parrot.spec.max_length - 200


def test_milliseconds_are_taken_of_single_tokens(long_text: str) -> None:
    parrot = Standing(toy_tokenizer("bytes"), long_text)
    assert ms_per_token(parrot, long_text) > 0
    assert parrot.forwards == WARM_UP + TIMED
    assert len(parrot.cache.ids[0]) == 256 + WARM_UP + TIMED - 1  # type: ignore[union-attr, attr-defined]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(1, 9))))
def test_a_table_adds_up(cases: list[tuple[str, int, int]]) -> None:
    table = RateTable()
    for row, amount, count in cases:
        table.add(row, amount, count)
    assert (table.all.amount, table.all.count) == (sum(c[1] for c in cases), sum(c[2] for c in cases))
    assert set(table.as_dict()) == {row for row, _, _ in cases} | {"all"}
    assert (table.all.value is None) == (not cases)


def test_steps_show_their_end_once() -> None:
    stream = io.StringIO()
    steps = ProgressBar("eval", 3, stream)
    for _ in range(3):
        steps.advance()
    assert stream.getvalue().count("100.0%") == 1 and "0.0 min left" in stream.getvalue()
