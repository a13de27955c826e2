"""The proposer against a fake vLLM: any draft leaves the text as it is, rows are followed, state ends with its row."""

from __future__ import annotations

from collections.abc import Sequence as Several

import numpy as np
import pytest
from codespec_vllm import Proposer
from codespec_vllm.drafting import Drafting
from codespec_vllm.rows import Rows
from codespec_vllm.settings import Settings, read_settings

from codespec.api.config import SHIPPED
from codespec.api.types import FinishReason
from codespec.errors import ConfigError
from codespec.proposers.base import NOTHING
from codespec.proposers.base import Proposer as Source
from codespec.proposers.lookup import SuffixProposer
from codespec.sequence import Cap, Draft, Sequence
from codespec.text.tokenizer import TextTokenizer
from plugins.vllm.tests.fake_vllm import LENGTH, FakeVllm, Request, fake_config
from tests.toy_tokenizers import held_out_texts, toy_tokenizer

TOKENS = 8
FIXED = Settings(policy="fixed")


class Garbage(Source):
    """Drafts bytes that are no text, and counts the sequences that were not released."""

    name = "garbage"

    def __init__(self, *texts: bytes) -> None:
        self.texts, self.calls, self.seen = texts, 0, set[Sequence]()

    def propose(self, sequences: Several[Sequence], caps: Several[Cap]) -> list[Draft]:
        self.calls += 1
        self.seen |= set(sequences)
        text = self.texts[self.calls % len(self.texts)]
        return [Draft(text, self.name, (len(text),), (0.9,)) if text else NOTHING for cap in caps]

    def release(self, sequence: Sequence, reason: FinishReason | None) -> None:
        self.seen.discard(sequence)


class Failing(Source):
    """Raises at its third call."""

    name = "failing"

    def __init__(self) -> None:
        self.calls = 0

    def propose(self, sequences: Several[Sequence], caps: Several[Cap]) -> list[Draft]:
        self.calls += 1
        if self.calls == 3:
            raise RuntimeError("a drafter broke")
        return [NOTHING] * len(sequences)


def requests(tokenizer: TextTokenizer, count: int, length: int = 60) -> list[Request]:
    """Return requests in held-out source, all with other prompts; some prompts take several steps."""
    ids = tokenizer.encode(held_out_texts()[0][:20_000])
    starts = [number * (len(ids) - 260) // count for number in range(count)]
    return [Request(ids[s : s + 200], ids[s + 200 : s + 200 + length], chunks=s % 3) for s in starts]


def plugin(source: Source, settings: Settings = FIXED, tokenizer: TextTokenizer | None = None) -> Proposer:
    """Return a proposer that drafts from one source."""
    proposer = Proposer(fake_config("", TOKENS))
    own = tokenizer or toy_tokenizer("qwen")
    proposer._drafting = Drafting(settings, own, [source], {}, tokens=TOKENS, longest=LENGTH)
    return proposer


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kind", ["qwen", "llama2"])
@pytest.mark.parametrize("policy", ["fixed", "cost"])
def test_rows_that_move_and_end_keep_their_texts(kind: str, shuffle: bool, policy: str) -> None:
    tokenizer = toy_tokenizer(kind)
    proposer = plugin(SuffixProposer(), Settings(policy=policy), tokenizer)
    work = requests(tokenizer, 12)
    engine = FakeVllm(proposer, TOKENS, rows=4, shuffle=shuffle)
    engine.run(work)
    assert proposer._drafting is not None, "it failed"
    if policy == "fixed":
        assert engine.steps < sum(len(request.answer) + request.chunks for request in work) / 4, "no draft was right"


def test_a_row_is_followed_when_it_moves() -> None:
    rows = Rows(toy_tokenizer("qwen"))
    first = [np.array([5, 6, 7, 8]), np.array([5, 6, 7, 9]), np.array([1, 2])]
    kept = rows.follow(first, [1, 1, 1]).rows
    moved = [np.array([1, 2, 3]), np.array([5, 6, 7, 9, 4, 4]), np.array([5, 6, 7, 8, 2])]
    following = rows.follow(moved, [1, 2, 1])
    assert following.rows == [kept[2], kept[1], kept[0]] and not following.ended
    assert [verdict.committed for row, verdict in following.verdicts if row is kept[1]] == [(4, 4)]
    ended = rows.follow([np.array([5, 6, 7, 8, 2]), np.array([1, 2, 3, 3])], [1, 1])
    assert ended.rows[1] is kept[2] and ended.rows[0] not in kept, "the same text again is another request"
    assert set(ended.ended) == {kept[0], kept[1]}


def test_equal_prompts_are_told_apart_by_their_answers() -> None:
    rows = Rows(toy_tokenizer("qwen"))
    short, long = rows.follow([np.array([1, 2]), np.array([1, 2, 3])], [1, 2]).rows
    following = rows.follow([np.array([1, 2, 3, 4]), np.array([1, 2, 9])], [1, 1])
    assert following.rows == [long, short]


def test_a_row_in_prefill_gets_no_draft_and_no_state() -> None:
    source = Garbage(b"text")
    proposer = plugin(source)
    ids = np.arange(40, dtype=np.int32).reshape(2, 20)
    drafts = proposer.propose([[], [29]], np.array([20, 10]), ids)
    assert drafts[0] == [] and drafts[1] and len(source.seen) == 1


def test_garbage_drafts_change_nothing_and_their_state_ends() -> None:
    tokenizer = toy_tokenizer("qwen")
    source = Garbage(b"\xff\xfe\x80", b"<|endoftext|>" * 40, b"\x00" * 900, b"", "日本".encode()[:5])
    proposer = plugin(source)
    FakeVllm(proposer, TOKENS, rows=4, shuffle=True).run(requests(tokenizer, 9))
    assert source.calls > 100 and len(source.seen) == 1  # the last row
    proposer.propose([], np.array([]), np.zeros((0, LENGTH)))
    assert not source.seen


def test_a_failing_drafter_ends_drafting_and_not_the_server() -> None:
    source = Failing()
    proposer = plugin(source)
    FakeVllm(proposer, TOKENS).run(requests(toy_tokenizer("qwen"), 3))
    assert source.calls == 3 and proposer._drafting is None


def test_a_large_batch_is_not_drafted_for_and_keeps_no_state() -> None:
    source = Garbage(b"text")
    proposer = plugin(source, Settings(policy="fixed", max_rows=2))
    ids = np.arange(60, dtype=np.int32).reshape(3, 20)
    proposer.propose([[9], [29]], np.array([10, 10, 10]), ids)
    assert len(source.seen) == 2
    assert proposer.propose([[9], [29], [49]], np.array([10, 10, 10]), ids) == [[], [], []]
    assert not source.seen


def test_the_end_of_the_context_is_not_passed() -> None:
    proposer = plugin(Garbage(b"some text to draft, longer than is left"))
    ids = np.full((1, LENGTH), 11, np.int32)
    lengths = [LENGTH - 4, LENGTH - 2, LENGTH - 1, LENGTH]
    drafts = [proposer.propose([[11]], np.array([length]), ids)[0] for length in lengths]
    assert [len(draft) for draft in drafts] == [3, 1, 0, 0]


def test_the_cost_policy_begins_after_plain_steps_and_drafts() -> None:
    tokenizer = toy_tokenizer("qwen")
    proposer = plugin(SuffixProposer(), Settings(), tokenizer)
    ids = tokenizer.encode("value = first(value)\n" * 40)
    engine = FakeVllm(proposer, TOKENS, seconds=0.01)
    engine.run([Request(ids[:60], ids[60:])])
    drafting = proposer._drafting
    assert drafting is not None and drafting.policy.name == "cost"
    assert engine.steps < 0.5 * len(ids[60:])


def test_a_fill_in_the_middle_prompt_is_read_as_prefix_and_suffix() -> None:
    tokenizer = toy_tokenizer("qwen")
    mark = tokenizer.vocab
    before, behind, middle = tokenizer.encode("a = 1\nb = "), tokenizer.encode("\nc = 3\n"), tokenizer.encode("2 + 2")
    prompt = [mark["<|fim_prefix|>"], *before, mark["<|fim_suffix|>"], *behind, mark["<|fim_middle|>"]]
    (row,) = Rows(tokenizer).follow([np.array(prompt + middle)], [len(middle)]).rows
    assert row is not None and not row.sequence.continues
    assert (row.sequence.request.prefix, row.sequence.request.suffix) == ("a = 1\nb = ", "\nc = 3\n")
    assert bytes(row.sequence.generated) == b"2 + 2" and row.sequence.context == b"a = 1\nb = "


def test_settings() -> None:
    assert read_settings({"CODESPEC_VLLM_MAX_ROWS": "4", "CODESPEC_MODEL": "x"}) == Settings(max_rows=4)
    for name, value in (("SPEED", "1"), ("CONTEXT", "many"), ("POLICY", "best"), ("MAX_ROWS", "0")):
        with pytest.raises(ConfigError, match=name):
            read_settings({f"CODESPEC_VLLM_{name}": value})


@pytest.mark.skipif(not SHIPPED.is_dir(), reason="the weights package is not installed")
def test_the_shipped_drafter_drafts_across_vocabularies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODESPEC_VLLM_POLICY", "fixed")
    monkeypatch.setenv("CODESPEC_VLLM_DTYPE", "float32")
    proposer = Proposer(fake_config(str(SHIPPED / "target"), TOKENS))
    assert proposer.propose([[1]], np.array([1]), np.zeros((1, LENGTH), np.int32)) == [[]]  # not loaded yet
    proposer.load_model(object())
    tokenizer = TextTokenizer.from_folder(SHIPPED / "target")
    engine = FakeVllm(proposer, TOKENS, rows=3, shuffle=True)
    work = requests(tokenizer, 3)
    engine.run(work)
    assert proposer._drafting is not None, "it failed"
    assert engine.steps < 0.9 * sum(len(request.answer) for request in work) / 3
