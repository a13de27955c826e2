"""Drafts pass between models as bytes: retokenized with the preceding text, cut to whole characters, without control
tokens.
"""

from __future__ import annotations

import pytest

from codespec.api.types import CompletionRequest
from codespec.engine.round import to_candidates
from codespec.sequence import Candidates, Cap, Draft, Sequence
from codespec.text.tokenizer import TextTokenizer
from tests.pairs import Garbage, build, model, run, texts, varied_requests
from tests.parrot import Parrot, Prompter, parrot_engine
from tests.toy_tokenizers import KINDS, held_out_texts, toy_tokenizer

CODE = held_out_texts()[0]
START = CODE.index("class TextCalendar")
ODD = "def größe(名):\r\n\tx = '\U0001f469\u200d\U0001f467 é'\r\n\t\treturn x  # \U0001f600\r\n" * 4


class Whisperer(Prompter):
    """Drafts about `size` bytes of the parrot's text instead of ids, with arbitrary ends."""

    def __init__(self, parrot: Parrot, size: int) -> None:
        super().__init__(parrot)
        self.size = size

    def draft(self, sequence: Sequence, cap: Cap) -> Draft:
        """Return the next bytes of the parrot's text."""
        done = sum(len(self.parrot.token_bytes[number]) for number in sequence.ids)
        text = self.parrot.text[done : done + self.size]
        return Draft(text, self.name, (len(text),), (1.0,)) if text else Draft()


@pytest.mark.parametrize("kind", KINDS)
def test_a_perfect_drafter_is_understood(kind: str) -> None:
    """Every kind of tokenizer accepts nearly all of a correct text, dummy prefixes included (encoded alone: none)."""
    text = CODE[START - 400 : START + 360]
    parrot = Parrot(toy_tokenizer(kind), text)
    request = CompletionRequest(prefix=text[:400], max_tokens=400)
    for size in (9, 32):
        (done,) = parrot_engine(parrot, Whisperer(parrot, size), cap=40).complete([request])
        assert done.text == text[400:]
        stats = done.stats
        assert stats.accepted >= (0.75 if size == 9 else 0.9) * stats.drafted
        assert stats.committed / stats.rounds >= 0.75 * size * len(done.token_ids) / len(done.text)


@pytest.mark.parametrize("size", [1, 3, 11])
@pytest.mark.parametrize("kind", KINDS)
def test_odd_text_survives_to_the_byte(kind: str, size: int) -> None:
    """CRLF, tabs, joined emoji; a draft that ends inside a character loses only that character."""
    parrot = Parrot(toy_tokenizer(kind), ODD)
    request = CompletionRequest(prefix=ODD[:40], max_tokens=300)
    (plain,) = parrot_engine(parrot).complete([request])
    assert plain.text == ODD[40:]
    done = parrot_engine(parrot, Whisperer(parrot, size)).complete([request])
    assert texts(done) == texts([plain])
    assert done[0].stats.accepted >= (0.5 if size > 3 else 0.2) * done[0].stats.drafted > 0


@pytest.mark.parametrize("kind", ["gpt2", "neox", "bytes", "llama2", "unigram"])
def test_candidates_are_the_drafts_own_text(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates are a prefix of the draft's bytes, within the cap, without control tokens, for any draft."""
    target, tokenizer = model("llama", kind), toy_tokenizer(kind)
    count = 0

    def checking(
        known: TextTokenizer, sequences: list[Sequence], drafts: list[Draft], caps: list[Cap]
    ) -> list[Candidates]:
        nonlocal count
        found = to_candidates(known, sequences, drafts, caps)
        for candidates, draft, cap in zip(found, drafts, caps, strict=True):
            assert draft.text.startswith(tokenizer.decode_bytes(candidates.ids))
            assert not set(candidates.ids) & tokenizer.special_ids
            assert all(tokenizer.token_bytes[number] for number in candidates.ids)
            assert len(candidates.ids) <= cap.tokens
            assert (candidates.reason == "cap") <= (len(candidates.ids) == cap.tokens)
            count += bool(candidates.ids)
        return found

    monkeypatch.setattr("codespec.engine.engine.to_candidates", checking)
    run(build(target, Garbage()), varied_requests(n=1)[:5])
    assert count >= 40


@pytest.mark.parametrize("kind", KINDS)
def test_markers_in_source_text_are_text(kind: str) -> None:
    """In the prompt, in the completion and in the draft."""
    text = 'END = "<|endoftext|>"\nFIM = "<|fim_prefix|>a<|fim_middle|>"\nX = "</s>"\n'
    parrot = Parrot(toy_tokenizer(kind), text)
    for cursor in (4, 30, 60):
        request = CompletionRequest(prefix=text[:cursor], max_tokens=150)
        for proposer in (None, Whisperer(parrot, 12)):
            (done,) = parrot_engine(parrot, proposer).complete([request])
            assert done.text == text[cursor:] and done.finish_reason == "stop"
            assert not set(done.token_ids[:-1]) & parrot.tokenizer.special_ids


def test_a_control_token_the_target_chooses_itself() -> None:
    """In shape raw only the target's end of text ends a text; another control token is silent."""
    tokenizer = toy_tokenizer("gpt2")
    marker, *around = (tokenizer.vocab[f"<|fim_{name}|>"] for name in ("prefix", "suffix", "middle"))

    class Marking(Parrot):
        def says(self, ids: list[int]) -> int:  # type: ignore[override]
            word = tokenizer.token_bytes[next(number for number in reversed(ids) if number not in around)]
            return marker if word and word.endswith(b"=") else super().says(ids)

    text = "x = 1\ny = 2\nz = 3\n"
    parrot = Marking(tokenizer, text)
    request = CompletionRequest(prefix="x =", max_tokens=60)
    (plain,) = parrot_engine(parrot).complete([request])
    assert plain.token_ids.count(marker) == 3 and plain.text == text[3:]
    for proposer in (Prompter(parrot, (5, 2)), Whisperer(parrot, 7)):
        done = parrot_engine(parrot, proposer).complete([request])
        assert texts(done) == texts([plain]) and done[0].stats.accepted > 0
    (line,) = parrot_engine(parrot).complete([CompletionRequest(prefix="x =", max_tokens=60, shape="line")])
    assert (line.text, line.finish_reason) == ("", "stop"), "in an editor's shape any control token ends it"
