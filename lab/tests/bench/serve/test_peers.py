"""llama.cpp's server in `codespec bench serve`, with a stand-in for the program."""

from __future__ import annotations

from pathlib import Path

import pytest
from codespec_lab.bench.decode import llama_cpp
from codespec_lab.bench.decode.llama_cpp import DRAFT, NGRAM, PLAIN, Original
from codespec_lab.bench.serve import Load, PeerPasses, serve_peers
from codespec_lab.bench.sites import PROMPTS, Site

from codespec.contract.engine_config import EngineConfig
from codespec.engine.admission import Admission
from codespec.models.loader import load_model
from lab.tests.bench.decode.test_llama_cpp import alive, folder, lines
from tests.cli.conftest import Models, models

__all__ = ["folder", "models"]

SITES = [Site(f"def area{n}(width):\n    ", "\n\nprint(1)\n", "a.py", kind=PROMPTS) for n in range(3)]


@pytest.fixture
def config(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    """A target that is said to come from a GGUF file."""
    monkeypatch.setattr(llama_cpp, "find_original", lambda name: Original(tmp_path / "a.gguf", "Q4_K_M"))
    return EngineConfig(target=str(models.target), drafter="none", threads=1)


def test_the_daemons_ids_are_sent_by_many_clients(config: EngineConfig, folder: Path) -> None:
    target = load_model(config.target, device="cpu", dtype="float32", exact=True, shape=None)
    admission = Admission(target, 200)
    expected = [tuple(admission.admit(site.request(4))[0].prompt_ids) for site in SITES]
    asked: list[None] = []
    with serve_peers(config, Load(SITES, 4, 2, 200), folder) as peers:
        assert [one.name for one in peers.contestants] == [PLAIN, NGRAM] and set(peers.absent) == {DRAFT}
        assert peers.requests == 6 and peers.facts()[PLAIN]["threads"] == 1
        passes = PeerPasses()
        for _ in range(2):
            peers.measure(peers.contestants[0], passes, 2, lambda: asked.append(None))
        running = [int(file.name[8:]) for file in folder.glob("started-*")]
    requests = lines(folder / "requests")
    assert sorted(tuple(one["prompt"]) for one in requests) == sorted([*expected, *expected])
    assert all(one["cache_prompt"] for one in requests) and len(asked) == 6
    assert len(running) == 1 and not alive(running[0])
    row = passes.as_dict([1000.0] * 3)
    assert row["requests"] == 6 and row["tokens_per_second"] > 0.0 and row["cached"] == 0.0
    assert row["codespec_faster"]["ratio"] < 1.0 and set(row["first_ms"]) == {"p50", "p95", "p99"}


def test_a_crash_is_one_sentence_and_ends_the_passes(
    config: EngineConfig, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE", "crash")
    with serve_peers(config, Load(SITES, 4, 2, 200), folder) as peers:
        passes = PeerPasses()
        for _ in range(2):
            peers.measure(peers.contestants[0], passes, 1, lambda: None)
    assert passes.as_dict([])["failed"].startswith("llama-server breaks off (exit status 7")
    assert len(list(folder.glob("started-*"))) == 1
