"""`codespec doctor` reports the prompt length, from planted times of a slow and of a fast machine."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from codespec.api.config import EngineConfig
from codespec.cli.daemon_checks import check_prompts
from codespec.engine.engine import Engine
from codespec.startup.tuning import ReadingSpeed
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
    message = r"(ok|warning): a new document's prompt may take \d+ of the context's 640 tokens, answered in [1-9]\d* ms"
    assert re.match(message, found["prompts"]), found["prompts"]
    assert "prompts" not in lines_of(command("doctor", "--no-probe", "--target", models.target))


@pytest.mark.parametrize(
    ("reading", "settings", "message"),
    [
        (FAST, {}, "ok: a new document's prompt may take 1,024 of the context's 1,024 tokens, answered in "),
        (SLOW, {"context": 512}, "ok: a new document's prompt may take 384 of the context's 512 tokens, answered in 6"),
        (SLOW, {"first_answer_ms": 0}, "may take 1,024 of the context's 1,024 tokens, answered in 1680 ms"),
        (SLOWEST, {}, "warning: a new document's prompt may take 256 of the context's 1,024 tokens, answered in "),
        (SLOWEST, {}, "later than first_answer_ms, and fewer tokens would be too few: close busy programs"),
    ],
)
def test_what_was_chosen(
    reading: ReadingSpeed, settings: dict[str, int], message: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codespec.startup.tuning.measure_again", lambda *_: reading)
    found = check_prompts(engine, EngineConfig(**settings))  # type: ignore[arg-type]
    assert message in f"{found.state}: {found.message}: {found.fix}"
