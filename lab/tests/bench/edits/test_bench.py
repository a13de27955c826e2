"""`codespec bench edits` as a whole, with a daemon whose engine answers by rule and a llama-server that does too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from codespec_lab.bench.edits import llama, scenario
from codespec_lab.bench.edits.cases import read_scenarios
from codespec_lab.bench.llama_server import Completion, Program

from codespec.api.config import EngineConfig
from codespec.api.types import CompletionRequest
from tests.cli.conftest import Command, Models, command, models, plain_environment
from tests.server.daemons import serving
from tests.server.fakes import FakeEngine

__all__ = ["Models", "command", "models", "plain_environment"]
CONTEXT = 4096


def write(request: CompletionRequest) -> str:
    """Rename `vat`, write a marker where `item.cost` is, and repeat all other windows."""
    return request.prediction.replace("1 + vat", "1 + tax_rate").replace("item.cost", "<|im_end|>")


@contextmanager
def fake_daemon(_config: EngineConfig, _queue: int, **settings: str) -> Iterator[str]:
    with serving(FakeEngine(answer=write, ends="stop"), slots=2, context=CONTEXT, edit_format="sweep-card") as served:
        yield f"http://127.0.0.1:{served.port}"


@pytest.fixture(autouse=True)
def _no_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "own_daemon", fake_daemon)


def test_the_bench(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "edits.json"
    done = command("bench", "edits", "--json", file)
    assert done.code == 0, done.err
    found = json.loads(file.read_text(encoding="utf-8"))
    rows = {row["case"]: row for row in found["rows"]}
    assert list(rows) == [case.name for case in read_scenarios()]
    renamed, unchanged = rows["python-parameter-renamed"], rows["go-field-copied"]
    assert (renamed["exact"], renamed["delta"], renamed["shown"]) == (1.0, 100.0, True)
    assert renamed["answer"] == [[14, 15, "    return net * (1 + vat)\n", "    return net * (1 + tax_rate)\n"]]
    assert (unchanged["exact"], unchanged["delta"], unchanged["shown"], unchanged["answer"]) == (0.0, 0.0, False, [])
    assert renamed["first_ms"] <= renamed["total_ms"] and unchanged["first_ms"] is None
    every = found["summary"]["all"]
    assert every["quiet"]["ratio"] == 1.0 and every["markers"] == 1
    assert f"{len(rows)} of {len(rows)} cases" in done.out and "deltaChrF" in done.out
    assert str(tmp_path) not in file.read_text(encoding="utf-8"), "a file of figures says nothing of the machine"


class FakeServer:
    """A llama-server that leaves every window as it is, as one that knows its prediction."""

    def __init__(self, *_: Any, **settings: Any) -> None:
        assert settings["slots"] == 1 and settings["room"] > 0 and "ngram-simple" in settings["flags"]

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def complete(self, ids: list[int], tokens: int, ends: frozenset[int], *, stops: Any, cache: bool) -> Completion:
        assert ids and cache
        return Completion(ids=[1], arrived=[0.0], ended=0.0, text="", timings=None)


def test_beside_llama_server(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        llama, "resolve", lambda name: SimpleNamespace(form="gguf", path=tmp_path, folder=lambda: tmp_path)
    )
    monkeypatch.setattr(llama, "load_tokenizer", lambda folder: FakeEngine().target.tokenizer)
    monkeypatch.setattr(llama, "find_program", lambda folder: Program(folder / "llama-server", "llama-server 1"))
    monkeypatch.setattr(llama, "LlamaServer", FakeServer)
    file = tmp_path / "edits.json"
    done = command("bench", "edits", "--llama-cpp", tmp_path, "--json", file)
    assert done.code == 0, done.err
    found = json.loads(file.read_text(encoding="utf-8"))
    assert all(len(row["llama_cpp"]) == len(llama.FLAGS) for row in found["rows"])
    unchanged = sum(not row["shown"] for row in found["rows"])
    assert done.out.count(f"{unchanged} equal answers") == len(llama.FLAGS)


def test_a_model_without_a_format_is_refused(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def without(_config: EngineConfig, _queue: int, **settings: str) -> Iterator[str]:
        with serving(FakeEngine(), slots=2) as served:
            yield f"http://127.0.0.1:{served.port}"

    monkeypatch.setattr(scenario, "own_daemon", without)
    done = command("bench", "edits")
    assert done.code == 2 and "no format for edits" in done.err


def test_an_archive_without_its_other_release(command: Command, tmp_path: Path) -> None:
    done = command("bench", "edits", "--pairs", tmp_path / "old.whl")
    assert done.code == 2 and "name an even number" in done.err
