"""The stream shows whole characters, nothing twice, and nothing that a later round takes back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codespec.api.types import CompletionRequest, DoneEvent, Event, RoundEvent, TextEvent
from tests.parrot import Parrot, Prompter, parrot_engine
from tests.toy_tokenizers import toy_tokenizer

PREFIX = "# names\n"
SPOKEN = "greet = '\U0001f469\u200d\U0001f467 größe 日本'\r\nif x:\n\treturn 1  \n\n\nEND of it\n"
SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=5)
KINDS = ("gpt2", "bytes", "llama2", "neox")


def events_of(request: CompletionRequest, kind: str, sizes: list[int]) -> list[Event]:
    parrot = Parrot(toy_tokenizer(kind), PREFIX + SPOKEN)
    return list(parrot_engine(parrot, Prompter(parrot, sizes)).stream(request))


def pieces_of(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, TextEvent)]


@pytest.mark.parametrize("kind", KINDS)
@given(sizes=SIZES, stop=st.sampled_from(["", "END", "\n\n", "日本'", "never"]), shape=st.sampled_from(["raw", "line"]))
@settings(max_examples=15)
def test_pieces_make_the_text(kind: str, sizes: list[int], stop: str, shape: str) -> None:
    request = CompletionRequest(prefix=PREFIX, max_tokens=200, stop=(stop,) if stop else (), shape=shape)
    events = events_of(request, kind, sizes)
    pieces = pieces_of(events)
    done = events[-1]
    assert isinstance(done, DoneEvent)
    assert "".join(pieces) == done.completion.text
    whole = SPOKEN[: SPOKEN.find(stop)] if stop and stop in SPOKEN else SPOKEN
    assert done.completion.text == (whole.split("\r\n")[0] if shape == "line" else whole)
    assert all(pieces) and "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_shown_as_soon_as_it_is_certain(kind: str) -> None:
    """Each round shows everything but a possible stop or partial character, without waiting for the end."""
    events = events_of(CompletionRequest(prefix=PREFIX, max_tokens=200, stop=("END",)), kind, [4])
    pieces = pieces_of(events)
    rounds = [event for event in events if isinstance(event, RoundEvent)]
    assert len(pieces) >= 0.5 * len(rounds) >= 3
    assert max(map(len, pieces)) < 40


@given(sizes=SIZES)
@settings(max_examples=15)
def test_rounds_tell_who_wrote_what(sizes: list[int]) -> None:
    events = events_of(CompletionRequest(prefix=PREFIX, max_tokens=200), "gpt2", sizes)
    rounds = [event for event in events if isinstance(event, RoundEvent)]
    data = "".join(event.accepted_text + event.target_text for event in rounds)
    assert data.replace("\ufffd", "") in (SPOKEN, data.replace("\ufffd", ""))
    assert data.count("\ufffd") or data == SPOKEN
    for event in rounds:
        assert event.draft.startswith(event.accepted_text) and event.accepted <= event.drafted
        assert event.source == ("scripted" if event.drafted else "")
    done = events[-1]
    assert isinstance(done, DoneEvent)
    stats = done.completion.stats
    assert stats.rounds == len(rounds) and stats.drafted == sum(event.drafted for event in rounds)


def test_alternatives_tell_their_number() -> None:
    parrot = Parrot(toy_tokenizer("gpt2"), PREFIX + SPOKEN)
    request = CompletionRequest(prefix=PREFIX, max_tokens=20, n=3)
    events = list(parrot_engine(parrot, Prompter(parrot)).stream(request))
    done = {event.choice: event.completion for event in events if isinstance(event, DoneEvent)}
    assert sorted(done) == [0, 1, 2]
    for choice, completion in done.items():
        shown = "".join(e.text for e in events if isinstance(e, TextEvent) and e.choice == choice)
        assert shown == completion.text and completion.choice == choice


def test_half_a_character_at_the_end_is_dropped() -> None:
    """The length limit may fall inside a character; only whole ones are shown."""
    seen = set()
    for limit in range(1, 40):
        (done,) = parrot_engine(Parrot(toy_tokenizer("bytes"), PREFIX + SPOKEN)).complete(
            [CompletionRequest(prefix=PREFIX, max_tokens=limit)]
        )
        assert SPOKEN.startswith(done.text) and len(done.token_ids) == limit
        seen.add(len(done.text.encode()) == limit)
    assert seen == {True, False}
