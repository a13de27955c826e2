"""Heads change only the time, never the text, and a head's state follows its target's slots."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from codespec.api.config import SHIPPED
from codespec.api.types import Completion, FinishReason
from codespec.backends.heads.config import HeadKind
from codespec.backends.heads.drafting import HeadRunner, make_runner
from codespec.backends.language_model import Rows
from codespec.backends.loader import load_model
from codespec.engine.engine import Engine
from codespec.errors import ConfigError, ModelError
from codespec.proposers.draft_model import DraftModel
from codespec.proposers.head import HeadProposer
from codespec.sequence import Cap, Draft, Sequence
from tests.engine.test_device_steps import device_model
from tests.pairs import build, drafters, model, prompts, run, texts, total, varied_requests
from tests.random_heads import random_head, save_eagle3

TARGETS = (
    ("llama", "gpt2", "float32"),
    ("qwen3", "qwen", "bfloat16"),
)
every_kind = pytest.mark.parametrize("kind", get_args(HeadKind))


@cache
def target(architecture: str, tokenizer: str, dtype: str) -> Any:
    return model(architecture, tokenizer, dtype, twin=31)


@cache
def plain(architecture: str, tokenizer: str, dtype: str) -> list[Completion]:
    engine = build(model(architecture, tokenizer, dtype), max_batch=1)
    return run(engine, varied_requests(), together=False, speculate=False)


def engine_with_head(kind: HeadKind, architecture: str, tokenizer: str, dtype: str, **settings: object) -> Engine:
    one = target(architecture, tokenizer, dtype)
    return build(one, head=random_head(one, kind), proposers="head", **settings)


@pytest.mark.parametrize(
    "kind,architecture,tokenizer,dtype",
    [(kind, *target) for number, kind in enumerate(get_args(HeadKind)) for target in TARGETS[: 1 if number else None]],
)
def test_on_equals_off(kind: HeadKind, architecture: str, tokenizer: str, dtype: str) -> None:
    wanted = texts(plain(architecture, tokenizer, dtype))
    engine = engine_with_head(kind, architecture, tokenizer, dtype)
    done = run(engine, varied_requests())
    assert texts(done) == wanted
    assert total(done).by_source[kind].drafted > 50, "it has drafted"
    assert texts(run(engine, varied_requests())) == wanted, "and from the cache"
    few = engine_with_head(kind, architecture, tokenizer, dtype, max_batch=2, prefill_chunk=16)
    assert texts(run(few, varied_requests())) == wanted


@every_kind
def test_rejection_and_policies_leave_the_text_alone(kind: HeadKind) -> None:
    case = ("llama", "gpt2", "float32")
    wanted = texts(plain(*case))
    for policy in ("cost+syntax", "fixed:9"):
        done = run(engine_with_head(kind, *case, policy=policy, learn=False), varied_requests())
        assert texts(done) == wanted


class Witness(HeadProposer):
    """Has a second, stateless head draft again, and records both drafts."""

    def __init__(self, inner: HeadProposer, fresh: HeadRunner) -> None:
        super().__init__(inner.runner)
        self._inner, self._fresh = inner, HeadProposer(fresh)
        self.pairs: list[tuple[Draft, Draft]] = []

    def propose(self, sequences: Any, caps: Any) -> list[Draft]:
        """Return the draft of the stateful head."""
        runner = self._fresh.runner
        runner.cache.done = [0] * len(runner.cache.done)
        message = self._inner.propose(sequences, caps)
        again = self._fresh.propose(sequences, caps)
        self.pairs += [pair for pair in zip(message, again, strict=True) if pair[0].ids or pair[1].ids]
        return message

    def release(self, sequence: Sequence, reason: FinishReason | None) -> None:
        """Keep nothing of a sequence."""


@pytest.mark.parametrize(("kind", "batch"), [*zip(get_args(HeadKind), (1, 8), strict=True)])
def test_what_it_remembers_is_what_it_would_read(kind: HeadKind, batch: int) -> None:
    """After drafts, rejections, alternatives, pauses and cached prompts, its draft equals that of a head that reads the
    whole text again.
    """
    one = target("llama", "gpt2", "float32")
    engine = build(one, head=random_head(one, kind), proposers="head", max_batch=batch)
    (inner,) = engine.proposers
    assert isinstance(inner, HeadProposer)
    fresh = make_runner(random_head(one, kind), one)
    assert one.cache is not None
    one.cache.followers.remove(fresh.cache)
    witness = Witness(inner, fresh)
    engine.proposers = (witness,)
    requests = varied_requests()
    requests += [replace(request, prefix=request.prefix[: 1 + len(request.prefix) // 2]) for request in requests]
    for _ in range(2):
        run(engine, requests, together=batch > 1)
    assert len(witness.pairs) > 100
    for message, again in witness.pairs:
        assert message.ids == again.ids
        assert message.confidences == pytest.approx(again.confidences, abs=1e-4)


@every_kind
def test_a_head_reads_ahead_in_a_warm_up(kind: HeadKind) -> None:
    engine = engine_with_head(kind, "llama", "gpt2", "float32")
    request = varied_requests()[4]
    long = replace(request, prefix="".join(prompts()))
    engine.complete([replace(long, max_tokens=0)])
    (proposer,) = engine.proposers
    assert isinstance(proposer, HeadProposer)
    read = max(proposer.runner.cache.done)
    assert read > 100
    done = engine.complete([long])[0]
    assert done.stats.by_source[kind].drafted


@every_kind
def test_a_draft_keeps_to_its_cap_and_to_what_is_spelled(kind: HeadKind) -> None:
    engine = engine_with_head(kind, "llama", "gpt2", "float32")
    seen: list[tuple[Cap, Draft]] = []
    (inner,) = engine.proposers
    whole = inner.propose

    def propose(sequences: Any, caps: Any) -> list[Draft]:
        message = whole(sequences, caps)
        seen.extend(zip(caps, message, strict=True))
        return message

    inner.propose = propose  # type: ignore[method-assign]
    run(engine, varied_requests())
    spelled = engine.target.token_bytes
    for cap, draft in seen:
        ids = draft.ids or ()
        assert len(ids) <= cap.tokens and all(spelled[token] for token in ids)
        assert b"".join(spelled[token] for token in ids) == draft.text
    assert torch.is_inference_mode_enabled() is False


@every_kind
def test_on_equals_off_over_device_steps(kind: HeadKind) -> None:
    """Padding, buckets and static buffers do not mix a head's features."""
    one = device_model("llama", "gpt2", "float32", seed=5)
    wanted = texts(run(build(one, max_batch=1), varied_requests(), together=False, speculate=False))
    engine = build(one, head=random_head(one, kind), proposers="head", graph_rows=16)
    done = run(engine, varied_requests())
    assert texts(done) == wanted and total(done).by_source[kind].drafted > 50
    spans = target("llama", "gpt2", "float32")
    ids = [(7 * place) % 300 for place in range(40)]
    kept = []
    for model_ in (one, spans):
        model_.tap((0, 1))
        model_.allocate(3, 64, 16)
        for slot, length in enumerate((9, 40, 5)):
            model_.admit(slot, length + 3)
        model_.forward([Rows(0, 0, ids[:9]), Rows(1, 0, ids), Rows(2, 0, ids[:5], keep=0)])
        model_.forward([Rows(2, 5, ids[5:8], keep=2), Rows(0, 9, ids[9:10])])
        assert model_.cache is not None and model_.cache.features is not None
        features = model_.cache.features
        whole = torch.cat([features[0, :10], features[1, :40], features[2, :8]])
        torch.testing.assert_close(features[0, :8], features[1, :8], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(features[2, :8], features[1, :8], atol=1e-4, rtol=1e-4)
        kept.append(whole)
    assert float(kept[0].abs().max()) > 0.1


def test_heads_read_one_target_in_turn() -> None:
    target("llama", "gpt2", "float32").tap((1,))
    wanted = texts(plain("llama", "gpt2", "float32"))
    for kind in get_args(HeadKind):
        engine = engine_with_head(kind, "llama", "gpt2", "float32")
        assert texts(run(engine, varied_requests())) == wanted


def test_the_starter_target_with_a_head_of_the_settings(tmp_path: Path) -> None:
    starter = load_model(str(SHIPPED / "target"), exact=False)
    for name, data in save_eagle3(random_head(starter, "eagle3")).items():
        (tmp_path / name).write_bytes(data)
    settings = {"target": str(SHIPPED / "target"), "learn": False, "warmup": 0, "max_batch": 4, "threads": 1}
    requests = varied_requests(n=1)[:3]
    plain_ = Engine.load(**settings, drafter=None)
    assert not any(isinstance(each, DraftModel) for each in plain_.proposers)
    assert drafters(Engine.load(**settings, drafter=str(SHIPPED / "drafter")))
    wanted = texts(run(plain_, requests, together=False, speculate=False))
    for proposers, policy in (("head", "fixed:4"), ("chain", "cost+syntax")):
        engine = Engine.load(**settings, head=str(tmp_path), proposers=proposers, policy=policy)
        done = run(engine, requests)
        assert texts(done) == wanted
        if proposers == "head":
            assert total(done).by_source["eagle3"].drafted
    drafter = str(SHIPPED / "drafter")
    with pytest.raises(ModelError, match="was trained for another target"):
        Engine.load(**{**settings, "target": drafter}, drafter=None, head=str(tmp_path))


def test_the_proposer_head_needs_a_head() -> None:
    with pytest.raises(ConfigError, match="requires a head"):
        Engine.load(target=str(SHIPPED / "target"), drafter=None, proposers="head")
