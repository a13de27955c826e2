"""Token healing: a prompt that ends inside a token is backed up and continued by tokens that match the held bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from codespec.api.types import CompletionRequest, RoundEvent, TextEvent
from tests.pairs import Garbage, Mixed, build, model, run, texts
from tests.parrot import Parrot, Prompter, parrot_engine
from tests.toy_tokenizers import toy_tokenizer

TEXT = "import os\n\n\ndef area(self):\n    return self.width\n"
KINDS = ("gpt2", "llama3", "qwen", "neox", "llama2", "metaspace-first", "unigram", "bytes")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cursor", [TEXT.index("turn"), TEXT.index("port"), TEXT.index("rea("), TEXT.index("dth")])
def test_the_text_completes_the_word(kind: str, cursor: int) -> None:
    """The completion begins at the cursor, however much was backed up; drafts change nothing."""
    parrot = Parrot(toy_tokenizer(kind), TEXT)
    request = CompletionRequest(prefix=TEXT[:cursor], max_tokens=80, heal=True)
    plain = parrot_engine(parrot).complete([request])
    assert plain[0].text == TEXT[cursor:]
    for sizes in ((1,), (4,), (8, 1)):
        drafted = parrot_engine(parrot, Prompter(parrot, sizes)).complete([request])
        assert texts(drafted) == texts(plain) and drafted[0].stats.accepted > 0


def test_held_bytes_are_not_shown_again() -> None:
    parrot = Parrot(toy_tokenizer("gpt2"), TEXT)
    cursor = TEXT.index("turn")
    engine = parrot_engine(parrot, Prompter(parrot))
    events = list(engine.stream(CompletionRequest(prefix=TEXT[:cursor], max_tokens=80, heal=True)))
    assert "".join(event.text for event in events if isinstance(event, TextEvent)) == TEXT[cursor:]
    rounds = [event for event in events if isinstance(event, RoundEvent)]
    assert "".join(event.accepted_text + event.target_text for event in rounds) == TEXT[cursor:]
    assert rounds[0].draft.startswith("turn")


def test_a_stop_is_looked_for_behind_the_cursor() -> None:
    parrot = Parrot(toy_tokenizer("gpt2"), TEXT)
    cursor = TEXT.index("turn")
    request = CompletionRequest(prefix=TEXT[:cursor], max_tokens=80, heal=True, stop=("return", "self"))
    for proposer in (None, Prompter(parrot)):
        (done,) = parrot_engine(parrot, proposer).complete([request])
        assert done.text == "turn "


@pytest.mark.parametrize("kind", KINDS)
def test_real_models_agree_with_the_held_bytes(kind: str) -> None:
    """A random model is forced through the held bytes, in plain and verify rows, even with garbage drafts."""
    target = model("llama", kind)
    requests = [
        CompletionRequest(prefix=prefix, max_tokens=10, heal=True, seed=seed, temperature=0.8 * (seed % 2))
        for seed, prefix in enumerate(["def f():\n    retu", "import sy", "x = self.wi", "class Dataf", "return str"])
    ]
    expected = run(build(target), requests, speculate=False)
    for request, done in zip(requests, expected, strict=True):
        spelled = b"".join(target.token_bytes[number] for number in done.token_ids)
        whole = len(spelled.decode(errors="ignore").encode())  # a character truncated by the limit is not shown
        held = spelled[: whole - len(done.text.encode())] if "\ufffd" not in done.text else b""
        assert request.prefix.encode().endswith(held.lstrip(b" "))
    for proposer in (Garbage(), Mixed(target, requests, expected, as_ids=True), Mixed(target, requests, expected)):
        assert texts(run(build(target, proposer), requests)) == texts(expected)
    unhealed = run(build(target), [replace(request, heal=False) for request in requests])
    assert kind == "bytes" or texts(unhealed) != texts(expected)
