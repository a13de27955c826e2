"""Defaults follow from the cost of rounds: planted tables of processors with nearly free rows and with costly ones.

Nothing is measured here.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from codespec.api.config import SHIPPED, EngineConfig
from codespec.backends.torch.model import TorchModel
from codespec.engine.engine import Engine
from codespec.speculation.cost_model import CostTable, Curve, ForwardCost
from codespec.speculation.policy import FixedLength
from codespec.startup import parts, tuning
from codespec.startup.tuning import (
    choose_batch,
    choose_chunk,
    choose_threads,
    find_threads,
    largest_batch,
    longest_draft,
)
from tests.pairs import build, model

MS = 1e-3


def table(*points: tuple[int, float]) -> CostTable:
    """Return costs from pairs of rows and milliseconds; a number of sequences costs the same as that number of rows."""
    return CostTable(ForwardCost((64,), (Curve.fit({rows: ms * MS for rows, ms in points}),)))


TILED = table((1, 40), (32, 42), (33, 60), (64, 62), (128, 90))  # as with AMX: 32 rows cost as much as one
DEAR = table((1, 10), (8, 20), (16, 40), (17, 42), (32, 80), (33, 82), (64, 160))  # compute-bound rows


def test_drafts_are_long_where_rows_are_nearly_free() -> None:
    assert longest_draft(32, table((1, 40), (64, 41))) == 32
    assert longest_draft(32, DEAR) == 16 and longest_draft(32, None) == 16
    assert longest_draft(4, TILED) == longest_draft(4, DEAR) == 4, "never longer than asked for"
    assert longest_draft(0, TILED) == 0


def test_chunks_are_as_large_as_others_can_wait() -> None:
    config = EngineConfig()
    assert choose_chunk(config, table((1, 1), (64, 20)).target.seconds) == 512
    assert choose_chunk(config, table((1, 10), (64, 100)).target.seconds) == 128
    assert choose_chunk(config, table((1, 100), (64, 900)).target.seconds) == 64
    assert choose_chunk(config, FixedLength(0).seconds) == 256
    assert choose_chunk(EngineConfig(prefill_chunk=48), DEAR.target.seconds) == 48


def test_more_run_at_once_where_that_is_clearly_cheaper() -> None:
    config = EngineConfig()
    assert choose_batch(config, TILED.target.seconds, 16) == 16 and choose_batch(config, TILED.target.seconds, 8) == 8
    assert choose_batch(config, DEAR.target.seconds, 16) == 8 and choose_batch(config, FixedLength(0).seconds, 16) == 8
    assert choose_batch(EngineConfig(max_batch=3), TILED.target.seconds, 3) == 3


def test_more_at_once_must_fit_into_memory() -> None:
    config = EngineConfig()
    assert largest_batch(config, 30 << 20) == 16 and largest_batch(config, 40 << 20) == 8
    assert largest_batch(EngineConfig(max_batch=40), 1 << 30) == 40
    assert largest_batch(EngineConfig(cache_mb=256), 24 << 20) == 8, "what the user gave is not used up by the batch"


def test_an_engine_takes_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespec.startup.tuning.price", lambda *_: TILED)
    engine = build(model("llama", "gpt2"), policy="cost", draft_tokens=32, proposers="suffix", learn=False)
    assert engine.max_batch == 16 and engine.policy._tokens >= 31  # type: ignore[attr-defined]
    assert engine.prefill_chunk == 256


class TestThreads:
    """One, four and eight threads take the same time, two take half."""

    @pytest.fixture(autouse=True)
    def machine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        asked: list[int] = []
        current = [1]

        def forward(*_: object) -> float:
            asked.append(current[0])
            return 0.005 if current[0] == 2 else 0.01

        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.delenv("OMP_NUM_THREADS")
        monkeypatch.setattr(tuning, "time_forward", forward)
        monkeypatch.setattr(torch, "set_num_threads", lambda count: current.__setitem__(0, count))
        monkeypatch.setattr(torch, "get_num_threads", lambda: current[0])
        monkeypatch.setattr(tuning, "processor", _Cores)
        monkeypatch.setattr(tuning, "_CHOSEN", [])
        return asked

    def test_from_one_to_the_physical_cores(self, machine: list[int]) -> None:
        target = model("llama", "gpt2")
        target.allocate(2, 512)
        assert choose_threads(target, 6, 0.01) == 2 and set(machine) == {1, 2, 4, 6}

    def test_a_short_context_is_enough(self, machine: list[int]) -> None:
        target = model("llama", "gpt2")
        target.spec = replace(target.spec, max_length=20)
        assert choose_threads(target, 2, 0.01) == 2
        target.spec = replace(target.spec, max_length=1024)

    def test_they_are_measured_once(self, machine: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        target, notes = model("llama", "gpt2"), list[str]()
        target.allocate(2, 512)
        assert find_threads(target, notes) == 2 and set(machine) == {1, 2, 4, 8}
        machine.clear()
        assert find_threads(target, notes) == 2 and machine == []
        monkeypatch.setattr(tuning, "_CHOSEN", [])
        assert find_threads(target, notes) == 2 and machine == [] and notes == [], "nor by another process"

    def test_a_number_that_no_start_would_keep_is_measured_again(self, machine: list[int], tmp_path: Path) -> None:
        target, notes = model("llama", "gpt2"), list[str]()
        target.allocate(2, 512)
        find_threads(target, notes)
        for number in (99, 0, "many", None):
            tuning._CHOSEN.clear()
            (file,) = (tmp_path / "codespec" / "threads").glob("*.json")
            file.write_text(json.dumps({"format": 1, "content": {"threads": number}}))
            assert find_threads(target, notes) == 2
            assert "the saved number of threads can't be read" in notes.pop() and not notes

    def test_a_variable_bounds_them(self, machine: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert find_threads(model("llama", "gpt2"), []) == 1 and machine == []


class _Cores:
    cores = 8
    label = "a processor of eight cores"


@pytest.mark.parametrize("threads", [0, 1])
def test_threads_are_measured_only_where_none_are_given(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[TorchModel] = []

    def find(model: TorchModel, _notes: list[str]) -> int:
        measured.append(model)
        return 1

    monkeypatch.setattr(parts, "find_threads", find)
    engine = Engine.load(target=str(SHIPPED / "target"), drafter=None, threads=threads, warmup=0, learn=False)
    assert measured == ([] if threads else [engine.target])
