"""Fallback to a lower instruction set if every call shape varies: tried in processes, stored, used next time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from codespec.contract.engine_config import EngineConfig
from codespec.engine.engine import Engine
from codespec.models.call_shape import FAST
from codespec.startup import calls
from codespec.startup.call_search import SearchResult
from codespec.startup.calls import VARIABLE, holds, look_lower, take_kept
from tests.cli.conftest import varies, write_model

Patch = pytest.MonkeyPatch


class Amx:
    """A processor with all known features."""

    label = "a processor with AMX"
    features = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "")  # restored after the test
    monkeypatch.setattr(calls, "processor", Amx)
    monkeypatch.setattr(calls, "_LOADED", [])


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return EngineConfig(target=str(write_model(tmp_path / "model", "gpt2", 0)), drafter="none", learn=False)


def test_what_holds_is_kept_for_the_next_start(config: EngineConfig, monkeypatch: Patch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(calls, "holds", lambda _, name: tried.append(name) or name == "AVX512_CORE")
    notes: list[str] = []
    look_lower(config, notes)
    assert tried == ["AVX512_CORE_BF16", "AVX512_CORE"]
    assert notes == ["the next start takes ONEDNN_MAX_CPU_ISA=AVX512_CORE, where exact mode holds"]
    assert os.environ[VARIABLE] == "", "this process can't change its mind"
    take_kept(EngineConfig(target=config.target, dtype="bfloat16"))
    assert os.environ[VARIABLE] == "", "it was found for another number format"
    monkeypatch.setattr(calls, "_LOADED", [])
    take_kept(EngineConfig(target=config.target, mode="fast"))
    take_kept(config)
    assert os.environ[VARIABLE] == "", "a model was loaded before: the variable would come too late"
    monkeypatch.setattr(calls, "_LOADED", [])
    take_kept(config)
    assert os.environ[VARIABLE] == "AVX512_CORE"


def test_who_set_the_variable_has_decided(config: EngineConfig, monkeypatch: Patch) -> None:
    monkeypatch.setattr(calls, "holds", lambda *_: True)
    look_lower(config, [])
    monkeypatch.setenv(VARIABLE, "AVX2")
    notes: list[str] = []
    look_lower(config, notes)
    take_kept(config)
    assert notes == [] and os.environ[VARIABLE] == "AVX2"


def test_where_nothing_holds_it_is_tried_once(config: EngineConfig, monkeypatch: Patch) -> None:
    monkeypatch.setattr(calls, "holds", lambda *_: False)
    notes: list[str] = []
    look_lower(config, notes)
    assert notes == []
    monkeypatch.setattr(calls, "holds", lambda *_: pytest.fail("it was tried before"))
    look_lower(config, notes)
    take_kept(config)
    assert notes == [] and os.environ[VARIABLE] == ""


def test_a_process_of_its_own_tries_the_model(config: EngineConfig, tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "codespec.py").write_text("raise SystemExit('a file of the working folder was run')\n")
    monkeypatch.chdir(tmp_path)
    assert holds(config, "AVX2")
    assert not holds(EngineConfig(target=str(tmp_path / "nothing")), "AVX2")


def test_an_engine_that_varies_looks_lower(config: EngineConfig, monkeypatch: Patch) -> None:
    """The fallback needs a kernel that varies by itself; code between kernels, like a mixture of experts, varies with
    all of them.
    """
    varies(monkeypatch)
    monkeypatch.setattr(calls, "holds", lambda *_: pytest.fail("nothing is to be tried"))
    assert Engine.load(target=config.target, drafter=None, learn=False, policy="fixed").mode == "fast"
    monkeypatch.setattr(
        "codespec.startup.calls.settle", lambda model, chunk: SearchResult(FAST, "it varies", kernel=True)
    )
    monkeypatch.setattr(calls, "holds", lambda _, name: name == "AVX2")
    engine = Engine.load(target=config.target, drafter=None, learn=False, policy="fixed")
    assert engine.mode == "fast"
    assert engine.notes == [
        "exact mode does not hold here (it varies): fast mode is used, near-ties may differ",
        "the next start takes ONEDNN_MAX_CPU_ISA=AVX2, where exact mode holds",
    ]
