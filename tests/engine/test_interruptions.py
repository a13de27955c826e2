"""Deadlines, cancellation, closed streams and bad requests neither affect other requests nor leak a slot."""

from __future__ import annotations

from dataclasses import replace

import pytest

import codespec.engine.engine
from codespec.api.types import CompletionRequest, DoneEvent, TextEvent
from codespec.engine.engine import Engine
from codespec.errors import RequestError
from tests.pairs import Mixed, Oracle, build, cancel, model, run, texts, varied_requests
from tests.parrot import Parrot, Prompter, parrot_engine
from tests.toy_tokenizers import toy_tokenizer

PREFIX = "def f():"
SPOKEN = "\n    one = 1\n    two = 2\n    EN = 3\n    ENDED = 4\n    return one + two\n\n\nx = 1\n"
REQUEST = CompletionRequest(prefix=PREFIX, max_tokens=100)


class Clock:
    """A clock that only tests advance."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        """Return the time in seconds."""
        return self.now


def cut_short(
    monkeypatch: pytest.MonkeyPatch, steps: int, request: CompletionRequest, speculate: bool
) -> tuple[str, str]:
    """Return text and ending of a parrot's completion whose deadline passes after some steps."""
    clock, parrot = Clock(), Parrot(toy_tokenizer("gpt2"), PREFIX + SPOKEN)
    monkeypatch.setattr(codespec.engine.engine, "time", clock)
    engine = parrot_engine(parrot, Prompter(parrot, (3,)))
    (sequence,) = engine.submit(replace(request, deadline_ms=50, speculate=speculate))
    while sequence.finish_reason is None:
        clock.now += 0.0501 if steps == 0 else 0.0
        steps -= 1
        engine.step()
    return "".join(sequence.pieces), str(sequence.finish_reason)


@pytest.mark.parametrize("speculate", [False, True])
@pytest.mark.parametrize(
    "change",
    [{}, {"stop": ("END",)}, {"shape": "block"}, {"stop": ("two = 2\n    return",), "shape": "block"}],
    ids=["raw", "stop", "block", "both"],
)
def test_a_deadline_only_cuts_the_same_text_shorter(
    change: dict[str, object], speculate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = replace(REQUEST, **change)  # type: ignore[arg-type]
    whole, reason = cut_short(monkeypatch, 1000, request, speculate)
    assert reason == "stop"
    sizes = []
    for steps in range(40):
        text, reason = cut_short(monkeypatch, steps, request, speculate)
        assert whole.startswith(text), (steps, text)
        assert reason == "deadline" or text == whole
        sizes.append(len(text))
    assert sizes[0] == 0 and sizes == sorted(sizes) and len(set(sizes)) >= 5


def test_a_deadline_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    target, requests = model("llama", "gpt2"), varied_requests(n=1)
    expected = run(build(target), requests, speculate=False)
    clock = Clock()
    monkeypatch.setattr(codespec.engine.engine, "time", clock)
    engine = build(target, Mixed(target, requests, expected, as_ids=True), max_batch=3)
    asked = [replace(request, deadline_ms=60.0 if place % 2 else None) for place, request in enumerate(requests)]
    running = [sequence for request in asked for sequence in engine.submit(request)]
    while not all(sequence.finish_reason for sequence in running):
        engine.step()
        clock.now += 0.011
    late = [sequence.finish_reason == "deadline" for sequence in running]
    assert any(late) and not all(late) and not any(late[::2])
    for sequence, done in zip(running, expected, strict=True):
        ids = tuple(sequence.ids[len(sequence.prompt_ids) :])
        assert done.token_ids[: len(ids)] == ids
        assert sequence.finish_reason == "deadline" or ids == done.token_ids


def is_free(engine: Engine) -> bool:
    """Return whether nothing runs or waits and every slot is available."""
    return engine.queue.idle_for(0.0) is None and engine._batch.pool.num_taken == 0


def test_cancelling_between_rounds() -> None:
    target, requests = model("llama", "gpt2"), varied_requests(n=1, max_tokens=24)
    expected = run(build(target), requests, speculate=False)
    engine = build(target, Mixed(target, requests, expected, as_ids=True), max_batch=2)
    running = [sequence for request in requests for sequence in engine.submit(request)]
    for _ in range(3):
        engine.step()
    gone = [running[0], running[5]]
    assert gone[0].num_generated > 0 and gone[1].slot < 0, "one that decodes and one that still waits"
    for sequence in gone:
        cancel(engine, sequence)
        cancel(engine, sequence)
    while not all(sequence.finish_reason for sequence in running):
        engine.step()
    assert is_free(engine)
    for sequence, done in zip(running, expected, strict=True):
        ids = tuple(sequence.ids[len(sequence.prompt_ids) :])
        assert ids == done.token_ids or (sequence in gone and done.token_ids[: len(ids)] == ids)
        assert (sequence.finish_reason == "cancelled") == (sequence in gone)
    assert set(engine.proposers[0].released) == set(running)  # type: ignore[attr-defined]


def test_cancelling_the_first_of_several_alternatives() -> None:
    """The others share its prefill and must not wait forever."""
    target, request = model("llama", "gpt2"), varied_requests()[5]
    expected = run(build(target), [request], speculate=False)
    for steps in (0, 1, 3):
        engine = build(target, Oracle(target, [request], expected, as_ids=True), max_batch=2, prefill_chunk=16)
        running = engine.submit(request)
        for _ in range(steps):
            engine.step()
        engine._finish(running[0], "cancelled")
        for _ in range(200):
            engine.step()
        assert is_free(engine)
        got = [tuple(sequence.ids[len(sequence.prompt_ids) :]) for sequence in running[1:]]
        assert got == [done.token_ids for done in expected[1:]]


@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_a_stream_closed_early_frees_its_slot(after: int) -> None:
    parrot = Parrot(toy_tokenizer("gpt2"), PREFIX + SPOKEN)
    engine = parrot_engine(parrot, Prompter(parrot, (2,)), max_batch=1)
    events = engine.stream(REQUEST)
    seen = [next(events) for _ in range(after)]
    events.close()  # type: ignore[attr-defined]
    assert is_free(engine)
    assert not any(isinstance(event, DoneEvent) for event in seen)
    assert engine.complete([REQUEST])[0].text == SPOKEN


def test_two_streams_in_turn() -> None:
    parrot = Parrot(toy_tokenizer("gpt2"), PREFIX + SPOKEN)
    engine = parrot_engine(parrot, Prompter(parrot, (2,)), max_batch=2)
    first, second = engine.stream(REQUEST), engine.stream(replace(REQUEST, stop=("two",)))
    shown = ["", ""]
    going = [first, second]
    while going:
        for events in list(going):
            event = next(events, None)
            if event is None:
                going.remove(events)
            elif isinstance(event, TextEvent):
                shown[events is second] += event.text
    assert shown == [SPOKEN, SPOKEN[: SPOKEN.index("two")]]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("temperature", [5e-324, 1e-320, 1e-12])
def test_a_temperature_that_would_overflow_is_greedy(temperature: float) -> None:
    parrot = Parrot(toy_tokenizer("gpt2"), PREFIX + SPOKEN)
    engine = parrot_engine(parrot, Prompter(parrot), max_batch=1)
    (completion,) = engine.complete([replace(REQUEST, temperature=temperature)])
    assert completion.text == SPOKEN


@pytest.mark.parametrize(
    "field,value",
    [
        ("repetition_penalty", 1e-320),
        *[("max_tokens", -1), ("temperature", -1.0), ("top_p", 0.0), ("n", 99), ("stop", ("",)), ("prefix", "\ud800")],
    ],
)
def test_a_bad_request_queues_nothing(field: str, value: object) -> None:
    parrot = Parrot(toy_tokenizer("gpt2"), PREFIX + SPOKEN)
    engine = parrot_engine(parrot, Prompter(parrot), max_batch=2)
    (other,) = engine.submit(REQUEST)
    engine.step()
    with pytest.raises(RequestError) as caught:
        engine.complete([REQUEST, replace(REQUEST, **{field: value})])  # type: ignore[arg-type]
    assert caught.value.field == field and str(caught.value).count("\n") == 0
    while other.finish_reason is None:
        engine.step()
    assert "".join(other.pieces) == SPOKEN
    assert is_free(engine)


def test_a_failing_step_leaves_nothing_behind() -> None:
    """For example a keyboard interrupt: the next call starts clean."""

    class Interrupting(Prompter):
        def propose(self, *given: object) -> list[object]:  # type: ignore[override]
            raise KeyboardInterrupt

    parrot = Parrot(toy_tokenizer("gpt2"), PREFIX + SPOKEN)
    engine = parrot_engine(parrot, Interrupting(parrot), max_batch=1)
    with pytest.raises(KeyboardInterrupt):
        engine.complete([REQUEST, REQUEST])
    assert is_free(engine)
    engine.proposers = (Prompter(parrot),)
    assert texts(engine.complete([REQUEST]))[0][1] == SPOKEN
