"""Warm-ups: prefill without decoding, in chunks that delay no other request, and the memory for prompts and caches."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from codespec.api.config import EngineConfig
from codespec.api.types import CompletionRequest
from codespec.backends.torch.model import TorchModel
from codespec.engine.admission import reserve
from codespec.errors import ConfigError
from codespec.startup.parts import choose_slots
from tests.engine.test_documents import TEXT, counting_engine, editor, spelling
from tests.pairs import build, cancel, drafters, network_for, wrapped


@cache
def filling_model(kind: str, seed: int = 0) -> TorchModel:
    """Return a tiny model with fill-in-the-middle tokens."""
    tokenizer = spelling(kind, "spm")
    return wrapped(network_for("llama" if seed == 0 else "qwen3", tokenizer, seed), tokenizer, kind)


class TestWarmUps:
    """`max_tokens=0` reads the prompt and writes nothing."""

    def test_what_it_read_is_warm(self) -> None:
        engine, mine = counting_engine("spm"), editor("mine")
        read = mine.ask(engine, max_tokens=0)
        assert (read.text, read.token_ids, read.finish_reason, read.stats.rounds) == ("", (), "length", 0)
        assert engine._batch.pool.num_tokens == read.stats.prompt_tokens - 1
        done = mine.ask(engine)
        assert done.stats.prompt_tokens == read.stats.prompt_tokens == done.stats.cached_tokens + 1
        assert 0 < done.stats.drafter_prompt_tokens <= done.stats.drafter_cached_tokens + 8
        again = mine.ask(engine, max_tokens=0)
        assert again.stats.cached_tokens == again.stats.prompt_tokens - 1

    def test_real_models_read_and_write_the_same(self) -> None:
        target, drafter = filling_model("gpt2"), filling_model("llama3", seed=1)
        engine = build(target, drafter=drafter, max_batch=2, cache_mb=8)
        request = CompletionRequest(prefix=TEXT[:300], suffix=TEXT[300:600], max_tokens=4)
        cold = engine.complete([request])[0]
        engine = build(target, drafter=drafter, max_batch=2, cache_mb=8)
        read = replace(request, max_tokens=0)
        done = engine.complete([replace(read, n=3), read, replace(read, prefix=TEXT[:200])])
        warm = engine.complete([request])[0]
        assert warm.token_ids == cold.token_ids and not any(one.token_ids for one in done)
        assert warm.stats.cached_tokens == warm.stats.prompt_tokens - 1 and cold.stats.cached_tokens == 0
        assert sum(use.max_bytes for use in engine.caches.values()) <= 8 * 2**20
        assert all(0 < use.nbytes < use.max_bytes and use.slots >= 2 for use in engine.caches.values())
        assert not any(use.taken for use in engine.caches.values())

    def test_without_speculation_the_drafter_reads_nothing(self) -> None:
        engine = counting_engine("spm")
        editor("mine").ask(engine, max_tokens=0, speculate=False)
        assert [drafter.slots.num_tokens for drafter in drafters(engine)] == [0]
        assert engine._batch.pool.num_tokens > 100

    def test_it_reads_in_pieces(self) -> None:
        """No step computes more than one chunk of either model, which bounds the wait of others."""
        engine = counting_engine("spm", chunk=50)
        (sequence,) = engine.submit(CompletionRequest(prefix=TEXT[:3000], suffix=TEXT[3000:6000], max_tokens=0))
        seen, steps = 0, 0
        while sequence.finish_reason is None:
            engine.step()
            steps += 1
            assert sequence.cached - seen <= 50
            seen = sequence.cached
        assert steps >= sequence.stats.prompt_tokens // 50 + sequence.stats.drafter_prompt_tokens // 50

    def test_broken_off_it_leaves_what_it_read(self) -> None:
        engine, request = counting_engine("spm", chunk=50), CompletionRequest(prefix=TEXT[:1500], max_tokens=0)
        (sequence,) = engine.submit(request)
        engine.step()
        cancel(engine, sequence)
        assert engine.complete([request])[0].stats.cached_tokens == 50


def test_a_drafter_that_reads_for_long_holds_nobody_up() -> None:
    """In company it reads in chunks; alone at once."""
    for company, most in ((True, 50), (False, 400)):
        engine = counting_engine("spm", chunk=50)
        (drafter,) = drafters(engine)
        read, forward = [], drafter.model.forward
        drafter.model.forward = lambda batch: read.append(sum(len(part.ids) for part in batch)) or forward(batch)  # type: ignore[method-assign,assignment,func-returns-value] # noqa: B023
        requests = [CompletionRequest(prefix=TEXT[:1200], max_tokens=20)]
        if company:
            requests.append(CompletionRequest(prefix="x = 1\n", max_tokens=40))
        done = engine.complete(requests)
        assert max(read) <= most + 8 and done[0].stats.drafted > 0
        assert company or max(read) > 100


def test_a_warm_up_and_every_short_completion_have_one_prompt() -> None:
    sizes = {
        tokens: reserve(CompletionRequest(prefix="", max_tokens=tokens, shape="auto"), 2048) for tokens in range(600)
    }
    assert {sizes[tokens] for tokens in range(129)} == {128} and sizes[129] == 256 and sizes[599] == 1024
    assert all(tokens <= size <= 2048 - 16 for tokens, size in sizes.items())
    assert reserve(CompletionRequest(prefix="", max_tokens=7), 2048) == 7, "raw takes what it asks for"
    for context in (64, 100, 512):
        for tokens in range(context - 15):
            assert (
                tokens
                <= reserve(CompletionRequest(prefix="", max_tokens=tokens, shape="auto"), context)
                <= context - 16
            )


class TestMemory:
    """Number of slots."""

    def slots(self, **settings: object) -> int:
        lengths = {filling_model("gpt2"): 4096, filling_model("llama3", seed=1): 4096}
        config = EngineConfig(**settings)  # type: ignore[arg-type]
        return choose_slots(config, lengths, config.max_batch)

    def test_idle_documents_get_what_is_left(self) -> None:
        assert self.slots(max_batch=2) == 8
        assert self.slots(max_batch=2, cache_mb=64) > self.slots(max_batch=2, cache_mb=32) > 2

    def test_too_little_is_one_sentence(self) -> None:
        with pytest.raises(
            ConfigError, match=r"cache_mb = 1 is too small, because 8 concurrent requests take \d+ MB: raise cache_mb"
        ):
            self.slots(max_batch=8, cache_mb=1)
