"""A model as a proposer: its drafts, where they stop, and the slots it keeps and releases."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import codespec.engine.round
from codespec.api.types import CompletionRequest
from codespec.proposers.draft_model import DraftModel
from codespec.sequence import Cap, Draft, Sequence
from codespec.speculation.policy import DraftPlan
from tests.kin import cousin, sibling, turned_bytes
from tests.pairs import build, cancel, model, prompts, run, texts, total, varied_requests
from tests.toy_tokenizers import toy_tokenizer


def drafts_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence, Cap, Draft]]:
    """Record every proposal with a cap from now on."""
    seen: list[tuple[Sequence, Cap, Draft]] = []
    propose = DraftModel.propose

    def noting(self: DraftModel, sequences: list[Sequence], caps: list[Cap]) -> list[Draft]:
        drafts = propose(self, sequences, caps)
        seen.extend((s, c, d) for s, c, d in zip(sequences, caps, drafts, strict=True) if c.tokens)
        return drafts

    monkeypatch.setattr(DraftModel, "propose", noting)
    return seen


def test_a_shared_vocabulary_needs_no_retokenization(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("text was encoded, though ids could pass straight through")

    target, requests = model("llama", "gpt2"), varied_requests()
    expected = run(build(target), requests, speculate=False)
    monkeypatch.setattr(codespec.engine.round, "retokenize_batch", refused)
    seen = drafts_of(monkeypatch)
    done = run(build(target, drafter=sibling("llama", "gpt2", noise=0.0)), requests)
    assert texts(done) == texts(expected)
    assert all(draft.ids is not None and len(draft.ids) <= cap.tokens for _, cap, draft in seen if draft.text)
    stats = total(done)
    assert stats.accepted == stats.drafted > 100, "the same weights and the same luck guess everything right"


def test_a_vocabulary_in_another_order_is_not_shared() -> None:
    assert turned_bytes().fingerprint != toy_tokenizer("bytes").fingerprint
    target = model("llama", "bytes")
    engine = build(target, drafter=cousin("llama"))
    (proposer,) = engine.proposers
    assert isinstance(proposer, DraftModel) and not proposer.shared


def test_control_tokens_end_a_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that prefers its markers drafts up to them; they are never passed on, neither as ids nor as text."""
    tokenizer = toy_tokenizer("gpt2")
    drafter = sibling("llama", "gpt2", noise=0.021)
    target, seen = model("llama", "gpt2"), drafts_of(monkeypatch)
    markers = sorted(tokenizer.special_ids)
    forward = type(drafter).forward

    def marking(self: object, batch: object, cached: bool = True) -> torch.Tensor:
        logits = forward(self, batch, cached)  # type: ignore[arg-type]
        if self is drafter:
            logits[::2, markers] += 8.0
        return logits

    monkeypatch.setattr(type(drafter), "forward", marking)
    run(build(target, drafter=drafter, max_batch=3), varied_requests(n=1))
    lengths = [len(draft.ids or ()) for _, _, draft in seen]
    assert 0 in lengths and max(lengths) > 0
    for _, _, draft in seen:
        assert not set(draft.ids or ()) & tokenizer.special_ids
        assert not any(name.encode() in draft.text for name in ("<|endoftext|>", "<|fim_middle|>"))


def test_a_draft_stops_where_the_drafter_is_unsure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The uncertain unit itself is drafted (a rejected tail costs one row), but nothing after it."""
    seen = drafts_of(monkeypatch)
    target, drafter = model("llama", "gpt2"), model("qwen3", "llama2", seed=1)
    stopping = build(target, drafter=drafter)
    monkeypatch.setattr(stopping.policy, "plan", lambda batch: DraftPlan([Cap(8, 0.05)] * len(batch)))
    run(stopping, varied_requests(n=1)[:4])
    spoken = [draft for _, _, draft in seen if draft.text]
    assert len(spoken) >= 20
    for draft in spoken:
        assert all(confidence >= 0.05 for confidence in draft.confidences[:-1])
        assert len(draft.confidences) == len(draft.ends) and draft.ends[-1] == len(draft.text)
        assert list(draft.ends) == sorted(draft.ends)
    assert min(draft.confidences[-1] for draft in spoken) < 0.05
    fixed = run(build(target, drafter=drafter), varied_requests(n=1)[:4])
    assert total(fixed).drafted > sum(len(draft.ends) for draft in spoken)


def test_a_drafter_without_a_chain_keeps_to_its_own_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost policy gives each proposer a cap of its own, which also decides after each unit whether to continue."""
    engine = build(model("llama", "gpt2"), drafter=model("qwen3", "llama2", seed=1))
    own = Cap(8, by_source={"draft_model": Cap(8, min_confidence=1.1)})
    monkeypatch.setattr(engine.policy, "plan", lambda batch: DraftPlan([own] * len(batch)))
    seen = drafts_of(monkeypatch)
    run(engine, varied_requests(n=1)[:2])
    assert {len(draft.ends) for _, _, draft in seen if draft.text} == {1}


def test_caps_of_zero_cost_nothing() -> None:
    target, drafter = model("llama", "gpt2"), model("qwen3", "llama2", seed=1)
    engine = build(target, drafter=drafter, draft_tokens=0)
    run(engine, varied_requests(n=1)[:2])
    (proposer,) = engine.proposers
    assert isinstance(proposer, DraftModel) and drafter.cache is not None
    assert not proposer._texts and drafter.cache.lengths == [0] * drafter.cache.slots


def test_slots_come_back_and_are_used_again() -> None:
    target, drafter = model("llama", "gpt2"), model("qwen3", "llama2", seed=1)
    engine = build(target, drafter=drafter, max_batch=2)
    (proposer,) = engine.proposers
    assert isinstance(proposer, DraftModel)
    for _ in range(2):
        run(engine, varied_requests(n=1)[:5])
        assert proposer.slots.num_taken == 0 and not proposer._texts
    (sequence,) = engine.submit(CompletionRequest(prefix=prompts(3)[2], max_tokens=8))
    engine.step()
    first = proposer._texts[sequence].cached
    cancel(engine, sequence)
    assert first > 10 and proposer.slots.num_taken == 0
    drafter_rows = []
    forward = drafter.forward
    try:
        drafter.forward = lambda batch, cached=True: drafter_rows.append(batch) or forward(batch, cached)  # type: ignore[func-returns-value,method-assign]
        run(engine, [CompletionRequest(prefix=prompts(3)[2], max_tokens=8)])
    finally:
        del drafter.forward
    assert drafter_rows[0][0].start >= first - 20, "the second reading begins where the first one's cache ends"


def test_the_target_does_not_depend_on_the_drafters_dtype() -> None:
    target, requests = model("llama", "gpt2"), varied_requests(n=1)[:4]
    expected = run(build(target), requests, speculate=False)
    done = run(build(target, drafter=sibling("llama", "gpt2", "bfloat16", noise=0.0)), requests)
    assert texts(done) == texts(expected)
    assert total(done).accepted >= 0.6 * total(done).drafted


def test_alternatives_draft_with_their_own_luck(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = drafts_of(monkeypatch)
    request = CompletionRequest(prefix=prompts(2)[1], max_tokens=12, temperature=0.8, n=3)
    done = run(build(model("llama", "gpt2"), drafter=sibling("llama", "gpt2", noise=0.0)), [request])
    assert {sequence.choice for sequence, _, _ in seen} == {0, 1, 2}
    assert total(done).accepted == total(done).drafted > 20
    assert texts(done)[0] == texts(run(build(model("llama", "gpt2")), [replace(request, n=1)]))[0]
