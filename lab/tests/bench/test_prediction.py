"""`codespec bench prediction`: rule-based edits, a target that is forced to a text, and a run on a tiny model."""

from __future__ import annotations

import difflib
import json
from typing import Any

import pytest
from codespec_lab.bench import prediction
from codespec_lab.bench.prediction import (
    CELLS,
    OFF,
    RIGHT,
    USELESS,
    Pass,
    Rewrite,
    Writer,
    edit,
    find_rewrites,
    mismatches,
    report,
)
from codespec_lab.bench.settings import PredictionBench

from codespec.contract.engine_config import EngineConfig
from codespec.contract.types import Stats
from codespec.engine.engine import Engine
from codespec.errors import ConfigError
from tests.pairs import build, model

OLD = "".join(f"def value{number}(first):\n    return first + {number}\n\n" for number in range(8))
OTHER = "".join(f"class Name{number}:\n    size = {number}\n" for number in range(8))


def engine() -> Engine:
    return build(model("llama", "gpt2"), proposers="prediction", draft_tokens=8)


def rewrite() -> Rewrite:
    return Rewrite("a.py", "# a file, written again:\n", OLD, edit(OLD), OTHER)


def test_five_small_edits() -> None:
    changes = [each for each in difflib.ndiff(OLD.splitlines(), edit(OLD).splitlines()) if each[0] in "+-"]
    assert sum(each[0] == "+" for each in changes) == sum(each[0] == "-" for each in changes) == 4
    for what in ("_new", "checked = True", "# changed", "return None"):
        assert sum(what in each for each in changes) == 1, changes


@pytest.mark.parametrize("cell", [OFF, *CELLS])
def test_the_target_writes_what_it_is_given(cell: str) -> None:
    writer, asked = Writer(engine()), rewrite()
    assert writer.fits(asked)
    done = writer.write(asked, cell)
    spelled = b"".join(writer.engine.target.token_bytes[number] for number in done.ids)
    assert spelled.decode() == asked.new
    counts = done.stats.by_source.get("prediction")
    assert (counts is None) == (cell not in (RIGHT, USELESS))
    if cell == RIGHT:
        assert counts is not None and counts.accepted > len(done.ids) / 2 > done.stats.rounds


def test_what_does_not_fit_is_left_out() -> None:
    writer = Writer(engine())
    assert not writer.fits(Rewrite("a.py", "x" * 4000, OLD, OLD, OTHER))
    with pytest.raises(ConfigError, match="0 held-out files have 100000 lines and fit the context, 2 are needed"):
        find_rewrites(None, 2, 100_000, writer.fits)


def test_files_come_by_rule() -> None:
    found, note = find_rewrites(None, 2, 30, lambda _: True)
    again, _ = find_rewrites(None, 2, 30, lambda _: True)
    assert found == again and len({each.name for each in found}) == 2
    assert all(each.old.count("\n") == 30 and each.old != each.new and each.other != each.old for each in found)
    assert isinstance(note, str)


def test_a_text_that_differs_is_told() -> None:
    one, other = (Pass((number,), 1.0, 1, Stats()) for number in (1, 2))
    assert mismatches({OFF: [("a", one)], RIGHT: [("a", one)], USELESS: [("a", other)]}) == [f"a, {USELESS}"]


def test_a_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(prediction, "build_engine", lambda _: engine())
    monkeypatch.setattr(prediction, "find_rewrites", lambda *_: ([rewrite()], "a note"))
    found: dict[str, Any] = prediction.run_prediction_bench(
        PredictionBench(config=EngineConfig(), repeats=2), told.append
    )
    found = json.loads(json.dumps(found))
    assert found["mismatches"] == [] and len(told) == 3
    for cell in found["cells"].values():
        ratio = cell["faster"]
        assert len(cell["ratios"]) == 2 and ratio["low"] <= ratio["ratio"] <= ratio["high"]
    assert found["cells"][RIGHT]["tokens_a_round"] > 2.0
    lines = "\n".join(report(found))
    assert "a note" in lines and "tokens a round" in lines and all(cell in lines for cell in CELLS)
