"""The prompt budget of a first completion follows from the prefill speed: planted times of slow and fast machines.

Nothing is measured here.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from codespec.api.config import EngineConfig
from codespec.api.types import CompletionRequest
from codespec.engine.engine import Engine
from codespec.startup import tuning as module
from codespec.startup.parts import slot_bytes, target_context
from codespec.startup.tuning import (
    DRAFTER,
    MIN_PROMPT,
    STEP,
    ReadingSpeed,
    find_reading,
    measure_reading,
    prompt_budget,
)
from tests.engine.test_documents import TEXT
from tests.engine.test_warm_ups import filling_model
from tests.pairs import build, model, texts

FAST = ReadingSpeed(rows=256, near=0.010, far=0.012, distance=1024, one=0.004)
SLOW = ReadingSpeed(rows=64, near=0.100, far=0.140, distance=1024, one=0.030)
SLOWEST = ReadingSpeed(rows=64, near=2.0, far=2.0, distance=1024, one=0.5)
SPM = "spm"
BUDGET = 256


@pytest.mark.parametrize("reading", [FAST, SLOW, replace(SLOW, near=0.06), replace(FAST, far=0.3)])
@pytest.mark.parametrize("allowed", [400, 800, 3000])
def test_the_longest_that_is_answered_in_time(reading: ReadingSpeed, allowed: int) -> None:
    tokens, time = prompt_budget(reading, allowed, 1 << 20), allowed / 1000 * (1 - DRAFTER)
    assert tokens == MIN_PROMPT or reading.answer(tokens) <= time
    assert reading.answer(tokens + STEP) > time, "and no fewer"


def test_it_follows_the_machine() -> None:
    slow, fast = prompt_budget(SLOW, 800, 1 << 20), prompt_budget(FAST, 800, 1 << 20)
    assert MIN_PROMPT < slow < fast / 10
    assert slow < prompt_budget(SLOW, 1600, 1 << 20) < 2 * slow + 200
    assert prompt_budget(replace(SLOW, far=SLOW.near), 3000, 1 << 20) > prompt_budget(SLOW, 3000, 1 << 20), (
        "what stands before costs"
    )


def test_floor_and_ceiling() -> None:
    assert prompt_budget(SLOWEST, 800, 8192) == MIN_PROMPT and prompt_budget(SLOWEST, 800, 100) == 100
    assert prompt_budget(FAST, 800, 2048) == 2048
    assert prompt_budget(SLOWEST, 0, 8192) == 8192, "0: no limit"


def test_seconds_are_those_of_the_chunks() -> None:
    """The formula equals the sum over chunks, each after the previous ones, to within half a chunk."""
    slope = (SLOW.far - SLOW.near) / SLOW.distance
    chunks = sum(SLOW.near + slope * place for place in range(0, 1024, SLOW.rows))
    assert chunks <= SLOW.seconds(1024) <= chunks + slope * 1024


class TestKept:
    """Measured once per machine."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        return tmp_path / "codespec" / "reading"

    def test_measured_then_kept(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        target, notes = model("llama", "gpt2"), list[str]()
        target.allocate(2, 512)
        found = find_reading(target, notes)
        assert found.rows in (64, 256) and found.distance > 0 and min(found.near, found.far, found.one) > 0
        assert target.cache is not None and target.cache.lengths[0] == 0
        monkeypatch.setattr(module, "measure_reading", lambda _: pytest.fail("it is kept"))
        target.allocate(5, 256)
        assert find_reading(target, notes) == found and notes == [], "how many slots there are does not matter"

    def test_measured_again_the_shorter_times_are_kept(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        target = model("llama", "gpt2")
        target.allocate(2, 256)
        monkeypatch.setattr(module, "measure_reading", lambda _: SLOW)
        assert find_reading(target, []) == SLOW
        monkeypatch.setattr(module, "measure_reading", lambda _: replace(SLOW, near=SLOW.near / 3, one=SLOW.one * 3))
        assert module.measure_again(target, []) == replace(SLOW, near=SLOW.near / 3)
        monkeypatch.setattr(module, "measure_reading", lambda _: pytest.fail("it is kept"))
        assert find_reading(target, []) == replace(SLOW, near=SLOW.near / 3)

    def test_another_number_format_is_another_speed(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for dtype in ("float32", "bfloat16"):
            target = model("llama", "gpt2", dtype)
            target.allocate(2, 256)
            find_reading(target, [])
        assert len(list(folder.iterdir())) == 2

    def test_a_file_that_is_broken_is_told(self, folder: Path) -> None:
        target, notes = model("llama", "gpt2"), list[str]()
        target.allocate(2, 256)
        find_reading(target, notes)
        (file,) = folder.iterdir()
        for content in ("{", '{"format": 1, "content": {"rows": 0, "near": 1, "far": 1, "distance": 1, "one": 1}}'):
            file.write_text(content)
            find_reading(target, notes)
            assert "the saved reading speed can't be read" in notes.pop() and not notes
        assert ReadingSpeed.from_dict(asdict(SLOW)) == SLOW

    def test_a_small_cache_is_enough(self) -> None:
        target = model("llama", "gpt2")
        target.allocate(1, 64)
        assert target.cache is not None
        found = measure_reading(target)
        assert found.rows + found.distance == target.cache.capacity


@pytest.fixture(name="slow")
def fixture_slow(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Return an engine with a context of 1,024 on a machine that reads 256 tokens in time."""
    monkeypatch.setattr("codespec.startup.parts.find_reading", lambda *_: SLOWEST)
    return build(filling_model("gpt2"), drafter=filling_model("llama3", seed=1), context=1024, max_batch=2)


def ask(engine: Engine, place: int, **change: object) -> CompletionRequest:
    values = {"prefix": TEXT[:place], "suffix": TEXT[place : place + 3000], "path": "a.py", "max_tokens": 8}
    return CompletionRequest(**{**values, "shape": "block", "document": "mine", **change})  # type: ignore[arg-type]


def test_an_editors_prompt_is_cut(slow: Engine) -> None:
    assert (slow.prompt_budget, slow.context) == (BUDGET, 1024)
    for change in ({}, {"shape": "line"}, {"suffix": ""}, {"max_tokens": 0}, {"document": ""}):
        stats = slow.complete([ask(slow, 5000, **change)])[0].stats
        assert BUDGET / 2 < stats.prompt_tokens <= BUDGET, change
        assert any("256 tokens that first_answer_ms allows and was trimmed" in note for note in stats.notes), change


def test_a_client_with_less_time_gets_a_shorter_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shorter of both times counts; 0 in the settings has no limit, whatever the client gives."""
    monkeypatch.setattr("codespec.startup.parts.find_reading", lambda *_: SLOW)
    part, whole = prompt_budget(SLOW, 1000, 1024), prompt_budget(SLOW, 1600, 1024)
    assert BUDGET < part < whole < 800

    def read(given: float | None, **settings: object) -> int:
        engine = build(filling_model("gpt2"), proposers="suffix", context=1024, **settings)  # type: ignore[arg-type]
        return engine.complete([ask(engine, 5000, first_answer_ms=given)])[0].stats.prompt_tokens

    assert part / 2 < read(1000, first_answer_ms=1600) <= part < read(None, first_answer_ms=1600) <= whole
    assert read(1600, first_answer_ms=1000) <= part
    assert read(1000, first_answer_ms=0) > whole


def test_a_raw_prompt_is_not(slow: Engine) -> None:
    for change in ({}, {"suffix": ""}):
        stats = slow.complete([ask(slow, 1600, shape="raw", **change)])[0].stats
        assert stats.prompt_tokens > 2 * BUDGET, change
    ids = tuple(slow.target.tokenizer.encode(TEXT[:2000]))
    assert len(ids) > 2 * BUDGET
    request = CompletionRequest(prefix="", prompt_ids=ids, max_tokens=2)
    assert slow.complete([request])[0].stats.prompt_tokens == len(ids)


def test_without_a_limit_the_context_is_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespec.startup.parts.find_reading", lambda *_: SLOWEST)
    engine = build(filling_model("gpt2"), proposers="suffix", context=1024, first_answer_ms=0)
    stats = engine.complete([ask(engine, 5000)])[0].stats
    assert stats.prompt_tokens > 2 * BUDGET
    assert any("longer than the context of 1024 tokens and was trimmed" in note for note in stats.notes)


def test_typing_in_a_warm_document_reads_what_was_typed(slow: Engine) -> None:
    """The window moves by a quarter when it is full: seldom, and never with each keystroke."""
    read, cold = [], slow.complete([ask(slow, 5000)])[0].stats
    for place in range(5008, 5248, 8):
        stats = slow.complete([ask(slow, place, suffix="\n\n" + TEXT[6000:9000], max_tokens=2)])[0].stats
        read.append(stats.prompt_tokens - stats.cached_tokens)
    moves = [count for count in read[1:] if count > 24]
    assert cold.cached_tokens == 0 and len(moves) <= 4 and max(moves, default=0) <= BUDGET
    assert sorted(read)[len(read) // 2] <= 12


def test_on_and_off_have_one_prompt(slow: Engine) -> None:
    """Also in separate engines: drafter settings do not change the prompt."""
    places = range(3000, 8000, 1400)
    requests = [ask(slow, place, document="", max_tokens=24) for place in places]
    on = slow.complete(requests)
    assert sum(done.stats.drafted for done in on) > 0
    assert texts(on) == texts(slow.complete([replace(request, speculate=False) for request in requests]))
    plain = build(slow.target, proposers="suffix", policy="fixed:0", context=1024, max_batch=1, prefill_chunk=64)
    assert texts(on) == texts(plain.complete(requests))


class TestContext:
    """Memory limits the context, in steps, from the default to the model's maximum."""

    def context(self, memory: int, monkeypatch: pytest.MonkeyPatch, longest: int = 8192, **settings: object) -> int:
        target = model("llama", "gpt2")
        spec = target.spec
        monkeypatch.setattr("codespec.startup.parts.machine_memory", lambda: memory)
        target.spec = replace(spec, max_length=longest)
        try:
            return target_context(target, EngineConfig(**settings))  # type: ignore[arg-type]
        finally:
            target.spec = spec

    def test_by_the_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        each = slot_bytes({model("llama", "gpt2"): 512})
        found = self.context(16 * each * 16 * 7, monkeypatch, max_batch=16)
        assert found == 512 * 7, "sixteen of them take a sixteenth"
        assert self.context(16 * each * 16 * 7, monkeypatch, max_batch=32) == 2048
        assert self.context(1 << 40, monkeypatch) == 8192 and self.context(0, monkeypatch) == 2048
        assert self.context(0, monkeypatch, longest=512) == 512
        assert self.context(0, monkeypatch, context=4096) == 4096
        assert self.context(1 << 40, monkeypatch, context=99) == 99

    def test_by_what_is_given(self, monkeypatch: pytest.MonkeyPatch) -> None:
        each = slot_bytes({model("llama", "gpt2"): 512}) / 2**20
        given = int(4 * each * 4 * 9) + 1
        assert self.context(0, monkeypatch, max_batch=4, cache_mb=given) == 512 * 9, "a part; the rest is for others"
