"""The phases of a start, as the daemon and the editors show them."""

from __future__ import annotations

from codespec.api.config import EngineConfig
from codespec.startup.parts import CHECKING, MEASURING, prepare
from tests.engine.test_warm_ups import filling_model


def test_a_start_says_what_it_measures_and_how_long_that_takes() -> None:
    told: list[str] = []
    prepare(filling_model("gpt2"), None, EngineConfig(context=256, max_batch=1), told.append, None)
    assert told.index(MEASURING) < told.index(CHECKING) < len(told) - 1 - told[::-1].index(MEASURING)
    assert "about 4 s" in MEASURING and "at the first start only" in MEASURING
