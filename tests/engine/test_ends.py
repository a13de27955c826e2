"""Where a text ends: stops, end-of-text tokens, lengths and shapes, decided per byte and not per round.

The target is a parrot with a known text, so all expected results are literal. The drafts are correct, in pieces of
varying size, so that each end falls inside an accepted draft, at its edge, or across two rounds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codespec.api.types import Completion, CompletionRequest, DoneEvent, TextEvent
from codespec.engine.engine import Engine
from codespec.text.fim_templates import FimMissing
from codespec.text.tokenizer import TextTokenizer
from tests.pairs import Mixed, build, model, network_for, run, texts, varied_requests, wrapped
from tests.parrot import Parrot, Prompter, parrot_engine
from tests.text.endings import CASES, Case
from tests.toy_tokenizers import toy_backend, toy_tokenizer

PREFIX = "def area(self):\n"
TEXT = "    return self.w * self.h  # größe \U0001f600\n\n\ndef next(self):\n    return 1\n"
SIZES = [(1,), (3, 1), (8,), (8, 2, 1)]


def say(request: CompletionRequest, message: str = TEXT, kind: str = "gpt2") -> list[Completion]:
    """Run the request plainly and with every kind of correct draft; all results must agree."""
    parrot = Parrot(toy_tokenizer(kind), request.prefix + message)
    done = parrot_engine(parrot).complete([replace(request, speculate=False)])
    for sizes in SIZES:
        done += parrot_engine(parrot, Prompter(parrot, sizes)).complete([request])
        assert done[-1].stats.accepted > 0 or request.max_tokens < 3 or not done[0].text
    assert len(set(texts(done))) == 1
    return done


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "bytes", "unigram", "llama2"])
def test_the_end_of_text_token(kind: str) -> None:
    """It may be inside an accepted draft: text, ids and cache end there."""
    tokenizer = toy_tokenizer(kind)
    for done in say(CompletionRequest(prefix=PREFIX, max_tokens=120), kind=kind):
        assert (done.text, done.finish_reason) == (TEXT, "stop")
        assert done.token_ids[-1] in tokenizer.model_eos_ids
        assert not set(done.token_ids[:-1]) & tokenizer.eos_ids
        assert done.stats.committed == len(done.token_ids)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 20])
def test_the_length_is_exact(limit: int) -> None:
    for done in say(CompletionRequest(prefix=PREFIX, max_tokens=limit)):
        assert len(done.token_ids) == done.stats.committed == limit
        assert done.finish_reason == "length"
        assert TEXT.startswith(done.text) and done.text


@given(st.integers(0, len(TEXT) - 1), st.integers(1, 14), st.sampled_from(["gpt2", "bytes", "llama3"]))
def test_a_stop_string_anywhere(start: int, size: int, kind: str) -> None:
    stop = TEXT[start : start + size]
    for done in say(CompletionRequest(prefix=PREFIX, max_tokens=120, stop=(stop, "never said")), kind=kind):
        assert (done.text, done.finish_reason) == (TEXT[: TEXT.find(stop)], "stop")
        spelled = b"".join(toy_tokenizer(kind).token_bytes[number] for number in done.token_ids).decode(
            "utf-8", "ignore"
        )
        assert TEXT.startswith(spelled) and stop in spelled
        last = toy_tokenizer(kind).token_bytes[done.token_ids[-1]]
        assert len(spelled.encode()) - len(last) < len((TEXT[: TEXT.find(stop)] + stop).encode()), "no token too many"


def test_the_stop_that_is_complete_first_counts() -> None:
    (done, *_) = say(CompletionRequest(prefix=PREFIX, max_tokens=60, stop=("self.h  #", "w *", "elf")))
    assert done.text == "    return s"
    (done, *_) = say(CompletionRequest(prefix=PREFIX, max_tokens=60, stop=("self.w", "f.w")))
    assert done.text == "    return ", "of two that are complete at once, the longer"


def test_a_stop_in_the_prompt_is_none() -> None:
    (done, *_) = say(CompletionRequest(prefix=PREFIX, max_tokens=60, stop=(":\n    return s",)))
    assert done.text == TEXT


@pytest.mark.parametrize(
    "shape,prefix,message,expected",
    [
        ("line", PREFIX, TEXT, TEXT.split("\n")[0]),
        ("line", "x = ", "1\r\ny = 2\r\n", "1"),
        ("line", "if x:", "\n    y = 1\nz\n", "\n    y = 1"),
        ("auto", "x = ", "f(\n    1,\n)\ny = 2\n", "f("),
        ("block", PREFIX[:-1], "\n" + TEXT, "\n" + TEXT[: TEXT.index("\n\n\ndef")]),
        ("auto", PREFIX[:-1], "\n" + TEXT, "\n" + TEXT[: TEXT.index("\n\n\ndef")]),
        ("block", "if x:", "\n    y = 1\n\n    z = 2\nw = 3\n", "\n    y = 1\n\n    z = 2"),
        ("block", "x = [", "\n    1,\n    2,\n]\ny = 1\n", "\n    1,\n    2,\n]"),
        ("raw", PREFIX, TEXT, TEXT),
    ],
)
def test_shapes(shape: str, prefix: str, message: str, expected: str) -> None:
    for kind in ("gpt2", "bytes"):
        for done in say(CompletionRequest(prefix=prefix, max_tokens=100, shape=shape), message, kind):
            assert done.text == expected
            assert done.finish_reason == "stop"


@given(st.integers(1, 60))
@settings(max_examples=8)
def test_shapes_and_lengths_together(limit: int) -> None:
    """With any token limit, the text is a prefix of the whole one."""
    for shape in ("line", "block"):
        done = say(CompletionRequest(prefix=PREFIX, max_tokens=limit, shape=shape))
        assert say(CompletionRequest(prefix=PREFIX, max_tokens=100, shape=shape))[0].text.startswith(
            done[0].text.rstrip()
        )


def test_an_end_of_text_inside_accepted_drafts_of_a_real_model() -> None:
    """Any id may be declared as end of text: the same model with another such id truncates the same text."""
    requests = varied_requests(n=1)
    plain = run(build(model("llama", "gpt2")), requests, speculate=False)
    for place in (2, 5):
        ends = frozenset(done.token_ids[place] for done in plain)
        tokenizer = TextTokenizer.from_backend(toy_backend("gpt2"), eos_ids=ends)
        target = wrapped(network_for("llama", tokenizer), tokenizer, "llama")
        expected = run(build(target), requests, speculate=False)
        for cut, whole in zip(expected, plain, strict=True):
            first = min(place for place, number in enumerate(whole.token_ids) if number in ends)
            assert cut.token_ids == whole.token_ids[: first + 1] and cut.finish_reason == "stop"
            assert whole.text.startswith(cut.text)
        engine = build(target, Mixed(target, requests, plain, as_ids=True))
        assert texts(run(engine, requests)) == texts(expected)


ENDINGS = {"ruby": "rb", "typescript": "ts", "javascript": "js", "python": "py", "rust": "rs", "bash": "sh"}


def plain_prompts(engine: Engine) -> Engine:
    """Remove suffixes from prompts, which the parrot does not understand; the suffix still determines the end."""
    engine._admission.template = FimMissing("a parrot")
    return engine


@pytest.mark.parametrize("case", [case for case in CASES if case.prefix and not case.idle], ids=str)
def test_places_in_code(case: Case) -> None:
    """The text that a programmer keeps, plainly and with drafts that run past its end."""
    path = f"a.{ENDINGS.get(case.language, case.language)}"
    shape: Any = case.shape
    parrot = Parrot(toy_tokenizer("gpt2"), case.prefix + case.message)
    request = CompletionRequest(prefix=case.prefix, suffix=case.suffix, path=path, shape=shape, max_tokens=400)
    plain, sped = (
        plain_prompts(parrot_engine(parrot)),
        plain_prompts(parrot_engine(parrot, Prompter(parrot, (8, 2, 1)))),
    )
    done = plain.complete([replace(request, speculate=False)]) + sped.complete([request])
    assert [one.text for one in done] == [case.kept, case.kept]
    assert len(set(texts(done))) == 1
    assert done[0].stats.ended == done[1].stats.ended
    pieces = [event.text for event in sped.stream(request) if isinstance(event, TextEvent)]
    assert "".join(pieces) == case.kept


@given(st.sampled_from([case for case in CASES if case.prefix and not case.idle]), st.integers(1, 40))
@settings(max_examples=15)
def test_places_in_code_with_few_tokens(case: Case, limit: int) -> None:
    """If the token limit is reached, the result is a prefix of the whole completion."""
    parrot = Parrot(toy_tokenizer("bytes"), case.prefix + case.message)
    shape: Any = case.shape
    request = CompletionRequest(prefix=case.prefix, suffix=case.suffix, language=case.language, shape=shape)
    for engine in (parrot_engine(parrot), parrot_engine(parrot, Prompter(parrot, (8, 2, 1)))):
        (done,) = plain_prompts(engine).complete([replace(request, max_tokens=limit)])
        assert case.kept.startswith(done.text)


def test_where_nothing_begins_the_target_does_nothing() -> None:
    parrot = Parrot(toy_tokenizer("gpt2"), "call(x)\n")
    request = CompletionRequest(prefix="call(x)", path="a.py", shape="auto", max_tokens=8)
    for engine in (parrot_engine(parrot), parrot_engine(parrot, Prompter(parrot, (8,)))):
        (done,) = engine.complete([request])
        assert (done.text, done.token_ids, done.finish_reason) == ("", (), "stop")
        assert "right after a closing bracket" in done.stats.notes[-1]
        events = list(engine.stream(replace(request, n=2)))
        assert [type(event) for event in events] == [DoneEvent, DoneEvent]
    assert parrot.forwards == 0
    assert parrot_engine(parrot).complete([replace(request, shape="raw")])[0].text == "\n"


def test_the_language_that_is_named_counts_before_the_path() -> None:
    message = "f(\n    1,\n)\ny = 2\n"
    parrot = Parrot(toy_tokenizer("gpt2"), "x = " + message)
    request = CompletionRequest(prefix="x = ", shape="auto", max_tokens=60)
    engine = parrot_engine(parrot)
    by_name, by_path, by_none = engine.complete(
        [replace(request, language="python"), replace(request, path="b.py"), replace(request, path="b.unknown")]
    )
    assert [by_name.text, by_path.text, by_none.text] == ["f(\n    1,\n)", "f(\n    1,\n)", "f("]
