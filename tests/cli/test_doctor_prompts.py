"""`codespec doctor` reports the prompt length and its reason, from planted times of a slow and of a fast machine."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from codespec.cli.checks.engine import check_prompts
from codespec.contract.engine_config import EngineConfig
from codespec.engine.engine import Engine
from codespec.startup.prompt_budget import ReadingSpeed
from tests.cli.conftest import Command, Models
from tests.cli.doctors import lines_of
from tests.pairs import build, model

FAST = ReadingSpeed(rows=256, near=0.001, far=0.001, distance=1024, one=0.001)
SLOW = ReadingSpeed(rows=64, near=0.1, far=0.1, distance=1024, one=0.01)
SLOWEST = replace(SLOW, near=1.0, far=1.0)


@pytest.fixture(name="engine", scope="module")
def fixture_engine() -> Engine:
    return build(model("llama", "gpt2"), proposers="suffix", max_batch=1)


def test_the_command_says_it(command: Command, models: Models) -> None:
    found = lines_of(command("doctor", "--target", models.target, "--drafter", models.drafter, "--context", "640"))
    said = r"(ok|warning): context 640 tokens \(as set\); .*answered in about [1-9]\d* ms"
    assert re.match(said, found["prompts"]), found["prompts"]
    assert "prompts" not in lines_of(command("doctor", "--no-probe", "--target", models.target))


@pytest.mark.parametrize(
    ("reading", "settings", "said"),
    [
        (
            FAST,
            {},
            "ok: context 1,024 tokens (the model's maximum); a new document's prompt may take all of them (ans",
        ),
        (
            SLOW,
            {"context": 512},
            "ok: context 512 tokens (as set); a new document's prompt may take 384 of them (answered in about 6",
        ),
        (SLOW, {}, "first_answer_ms = 800; 640 tokens a second)"),
        (SLOW, {"first_answer_ms": 0}, "a new document's prompt may take all of them (answered in about 1680 ms)"),
        (
            SLOWEST,
            {},
            "warning: context 1,024 tokens (the model's maximum); a new document's prompt may take 256 of them (answ",
        ),
        (SLOWEST, {}, "later than first_answer_ms, and fewer tokens would be too few: close busy programs"),
    ],
)
def test_what_was_chosen_and_why(
    reading: ReadingSpeed,
    settings: dict[str, int],
    said: str,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("codespec.startup.prompt_budget.measure_again", lambda *_: reading)
    found = check_prompts(engine, EngineConfig(**settings))  # type: ignore[arg-type]
    assert said in f"{found.state}: {found.said}: {found.mend}"


def test_why_the_context_is_no_longer(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespec.startup.prompt_budget.measure_again", lambda *_: SLOW)
    monkeypatch.setattr("codespec.startup.parts.machine_memory", lambda: 0)
    spec = engine.target.spec
    engine.target.spec = replace(spec, max_length=8192)
    try:
        by_memory, given = (check_prompts(engine, EngineConfig(cache_mb=size)).said for size in (0, 1))
    finally:
        engine.target.spec = spec
    assert "context 2,048 tokens (limited to 1/16 of the memory; the model's maximum is 8,192)" in by_memory
    assert "(limited to 1/4 of cache_mb; the model's maximum is 8,192)" in given
