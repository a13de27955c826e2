"""The drafter reads the target's text: after every sync its own ids spell the committed text exactly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer

from codespec.api.types import CompletionRequest, Snippet
from codespec.backends.torch.model import TorchModel
from codespec.proposers.draft_model import DraftModel, TextGuess
from codespec.sequence import Cap, Sequence
from codespec.text.align import complete_utf8_length
from codespec.text.tokenizer import TextTokenizer, byte_level_alphabet
from tests.kin import cousin, sibling
from tests.pairs import build, model, network_for, prompts, run, texts, total, varied_requests, wrapped
from tests.toy_tokenizers import toy_backend, toy_tokenizer

ODD = "def größe(名):\r\n\tx = '\U0001f469\u200d\U0001f467 é'\r\n\t\treturn x  # \U0001f600\r\n"


class Watch:
    """Checks each sequence before it is drafted; counts checks and how often the text was tokenized anew."""

    def __init__(self) -> None:
        self.guesses = self.layouts = self.longest = self.moved = 0

    def check(self, proposer: DraftModel, sequence: Sequence, guess: TextGuess) -> None:
        text, tokenizer = guess.text, proposer.model.tokenizer
        self.guesses += 1
        self.longest = max(self.longest, text.length)
        whole = sequence.request.prefix.encode()
        whole = whole[: max(0, len(whole) - len(sequence.held))] + sequence.known
        if text.shared:
            assert text.ids == sequence.ids
            return
        spelled = tokenizer.decode_bytes(text.ids)
        assert not set(text.ids) & tokenizer.special_ids
        assert text.base + sequence.known[text.offset :] == spelled
        at_start = tokenizer.dummy_prefix and not whole.endswith(spelled)
        assert whole.endswith(spelled[1:] if at_start else spelled)
        self.moved += len(spelled) < len(whole)
        assert text.length + 1 <= proposer.context


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Watch every drafter during a test."""
    seen = Watch()
    opened, read = DraftModel._open, DraftModel._lay_out

    def watching(self: DraftModel, sequence: Sequence, cap: Cap) -> TextGuess | None:
        guess = opened(self, sequence, cap)
        if guess is not None:
            seen.check(self, sequence, guess)
        return guess

    def counting(self: DraftModel, *given: object) -> object:
        seen.layouts += 1
        return read(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(DraftModel, "_open", watching)
    monkeypatch.setattr(DraftModel, "_lay_out", counting)
    yield seen
    assert seen.guesses, "nothing was watched"


@pytest.mark.parametrize("kind", ["llama2", "neox", "bytes"])
def test_in_step_with_the_target(kind: str, watch: Watch) -> None:
    target, drafter = model("llama", "llama3"), model("qwen3", kind, seed=1)
    requests = [*varied_requests(), CompletionRequest(prefix=ODD * 3, max_tokens=20)]
    run(build(target, drafter=drafter, draft_tokens=2), requests)
    assert watch.guesses >= 80
    assert watch.layouts == sum(request.n for request in requests), "laid out once, then kept in step"


def test_bytes_for_bytes(watch: Watch) -> None:
    """A target that writes byte by byte is sometimes inside a character."""
    target, drafter = model("llama", "bytes"), cousin("llama", noise=0.01)
    requests = [CompletionRequest(prefix=ODD * n, max_tokens=60, seed=n, temperature=0.8) for n in range(1, 5)]
    done = run(build(target, drafter=drafter), requests)
    assert total(done).accepted >= 40
    assert texts(done) == texts(run(build(target), requests, speculate=False))


@pytest.mark.parametrize("kind,context", [("llama2", 64), ("gpt2", 96)])
def test_a_context_shorter_than_the_text(kind: str, context: int, watch: Watch) -> None:
    target, drafter = model("llama", "gpt2"), model("qwen3", kind, seed=1)
    engine = build(target, drafter=drafter, draft_tokens=3)
    (proposer,) = engine.proposers
    assert isinstance(proposer, DraftModel)
    proposer.context = context
    request = CompletionRequest(prefix="".join(prompts(3)), max_tokens=45)
    done = run(engine, [request])
    assert texts(done) == texts(run(build(target), [request], speculate=False))
    assert watch.moved == watch.guesses >= 35
    assert 1 < watch.layouts <= 30, "the window moves now and then, not in every round"
    assert watch.longest <= context


def test_filling_in(watch: Watch) -> None:
    """The drafter lays out the prompt with its own template, snippets and suffix included."""
    target, drafter = model("llama", "gpt2"), model("qwen3", "qwen", seed=1)
    request = CompletionRequest(
        prefix=prompts(2)[1],
        suffix="\n    return None\n",
        path="a.py",
        snippets=(Snippet("b.py", "import os\n"),),
        max_tokens=24,
    )
    done = run(build(target, drafter=drafter), [request])
    assert texts(done) == texts(run(build(target), [request], speculate=False))


@pytest.mark.parametrize("kind", ["gpt2", "llama2"])
def test_healed_prompts(kind: str, watch: Watch) -> None:
    """Held bytes are certain: the drafter reads them at once, before the target has written them."""
    target, drafter = model("llama", kind), model("qwen3", "llama3", seed=1)
    requests = [
        CompletionRequest(prefix=prefix, max_tokens=12, heal=True, seed=3, temperature=0.8)
        for prefix in ("retu", "import os\nimport sy", "def f(self):\n    retu", "class Configu")
    ]
    done = run(build(target, drafter=drafter), requests)
    assert texts(done) == texts(run(build(target), requests, speculate=False))


def test_invalid_bytes_stay_in_the_drafters_text(watch: Watch) -> None:
    """The target may write invalid UTF-8; a drafter that joins later must not lose those bytes."""
    target, drafter = model("llama", "bytes"), cousin("llama", noise=0.01)
    engine = build(target, drafter=drafter, warmup=40)
    request = CompletionRequest(prefix="x = 1\n", max_tokens=80, temperature=3.0, seed=5)
    run(engine, [request])
    spelled = b"".join(target.token_bytes[number] for number in run(build(target), [request])[0].token_ids)
    assert complete_utf8_length(spelled) > 40 and "\ufffd" in spelled.decode("utf-8", "replace")


def test_one_request_in_a_full_batch_of_drafts(watch: Watch) -> None:
    """Drafts in a batch equal those made alone: neighbours and the drafter's slots do not mix."""
    target, drafter = model("llama", "gpt2"), model("qwen3", "llama2", seed=1)
    requests = varied_requests(n=1)[:5]
    alone = run(build(target, drafter=drafter, max_batch=1), requests, together=False)
    together = run(build(target, drafter=drafter, max_batch=8), requests)
    for first, second in zip(alone, together, strict=True):
        assert (first.stats.drafted, first.stats.accepted) == (second.stats.drafted, second.stats.accepted)


def test_a_character_the_drafter_cannot_spell() -> None:
    """Nothing is drafted then; the request and its neighbours continue."""
    target, drafter = model("llama", "gpt2"), poor_drafter()
    requests = [CompletionRequest(prefix=f"x = '{odd}'\n", max_tokens=8) for odd in ("a", "\U0010fffd")]
    done = run(build(target, drafter=drafter), requests)
    assert texts(done) == texts(run(build(target), requests, speculate=False))
    assert done[0].stats.drafted > 0 == done[1].stats.drafted


def test_ids_without_text_that_only_the_target_has() -> None:
    """Models with a common vocabulary may have different numbers of padding rows after it."""
    tokenizer = toy_tokenizer("gpt2")
    network = network_for("llama", tokenizer, padding=64)
    with torch.no_grad():
        network.get_output_embeddings().weight[-64:] *= 3
    target, drafter = wrapped(network, tokenizer, "padded"), sibling("llama", "gpt2")
    requests = [replace(request, max_tokens=16) for request in varied_requests(n=1)]
    done = run(build(target, drafter=drafter), requests)
    assert any(number >= tokenizer.vocab_size for choice in done for number in choice.token_ids)
    assert total(done).drafted > 0
    assert texts(done) == texts(run(build(target), requests, speculate=False))


def poor_drafter() -> TorchModel:
    """Return a drafter whose vocabulary lacks a byte that only characters beyond U+FFFFF use."""
    document = json.loads(toy_backend("bytes").to_str())
    lead = "".join(chr(code) for code, byte in byte_level_alphabet().items() if byte == 0xF4)
    del document["model"]["vocab"][lead]
    tokenizer = TextTokenizer.from_backend(Tokenizer.from_str(json.dumps(document)))
    return wrapped(network_for("qwen3", tokenizer, seed=1), tokenizer, "poor")
