"""`POST /v1/codespec/reload` at a real daemon under load: no request is lost, and no text mixes two models."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Models, models, write_model  # noqa: F401
from tests.cli.processes import TOKEN, user_environment
from tests.server.daemons import wait_for
from tests.server.test_process import Process, daemon

PATH, RELOAD = "/v1/codespec/complete", "/v1/codespec/reload"
OWN = {"Authorization": f"Bearer {TOKEN}"}
PROMPTS = [f"def f{number}(x):\n    return" for number in range(6)]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return another target, with another tokenizer."""
    return write_model(tmp_path_factory.mktemp("other") / "other", "qwen", 9)


@contextmanager
def reloading(models: Models, folder: Path, *words: str) -> Iterator[Process]:  # noqa: F811
    (folder / "token").write_text(TOKEN)
    homes = user_environment(XDG_STATE_HOME=str(folder / "state"))
    flags = [*models.flags, "--threads", "1", "--no-prefetch", "--audit-every", "0", "--queue", "200"]
    with daemon(*flags, "--token-file", folder / "token", *words, env=homes) as served:
        assert wait_for(lambda: served.ask("GET", "/ready")[0] == 200)
        yield served


def complete(served: Process, prompt: str, **more: Any) -> tuple[int, str, list[int]]:
    """Return the status, the text, and the target's ids of the last event."""
    body = {"prefix": prompt, "max_tokens": 24, "shape": "raw", "token_ids": True, **more}
    status, data = served.ask("POST", PATH, body, **OWN)
    if status != 200:
        return status, json.loads(data)["error"]["message"], []
    events = [block.split("\n") for block in data.decode().split("\n\n")[:-1]]
    values = [(lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: "))) for lines in events]
    assert values[-1][0] == "done" and values[-1][1]["finish_reason"] in ("length", "stop"), values[-1]
    return status, "".join(value["text"] for name, value in values if name == "text"), values[-1][1]["token_ids"]


def reload(served: Process, **body: Any) -> tuple[int, dict[str, Any]]:
    status, data = served.ask("POST", RELOAD, body, **OWN)
    return status, json.loads(data)


class Load:
    """Threads that send the prompts again and again, and what they got."""

    def __init__(self, served: Process, number: int = 6) -> None:
        self.served, self.ended = served, threading.Event()
        self.found: list[tuple[float, str, int, str, tuple[int, ...]]] = []
        self.threads = [threading.Thread(target=self.run, args=(place,)) for place in range(number)]

    def run(self, place: int) -> None:
        count = place
        while not self.ended.is_set():
            prompt, began = PROMPTS[count % len(PROMPTS)], time.monotonic()
            status, text, ids = complete(self.served, prompt)
            self.found.append((began, prompt, status, text, tuple(ids)))
            count += 1

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join(120)


def texts(served: Process) -> dict[str, tuple[str, tuple[int, ...]]]:
    found = {}
    for prompt in PROMPTS:
        status, text, ids = complete(served, prompt)
        assert status == 200, text
        found[prompt] = (text, tuple(ids))
    return found


@pytest.mark.parametrize("unload_first", [False, True])
def test_no_request_is_lost_and_no_text_is_mixed(
    unload_first: bool,
    models: Models,  # noqa: F811
    other: Path,
    tmp_path: Path,
) -> None:
    with reloading(models, tmp_path) as served:
        old = texts(served)
        began = time.monotonic()
        with Load(served) as load:
            assert wait_for(lambda: len(load.found) > 12)
            status, said = reload(served, target=str(other), drafter=str(models.drafter), unload_first=unload_first)
            swapped, before = time.monotonic(), len(load.found)
            assert status == 200 and said["target"] == "other", said
            assert wait_for(lambda: len(load.found) > before + 12)
        new = texts(served)
        assert {key: old[key] == new[key] for key in PROMPTS} == dict.fromkeys(PROMPTS, False)
        assert Counter(status for _, _, status, _, _ in load.found) == {200: len(load.found)}, load.found
        for started, prompt, _, text, ids in load.found:
            assert (text, ids) in (old[prompt], new[prompt]), (prompt, text)
            assert started < swapped or (text, ids) == new[prompt], "later requests get the new model"
        assert json.loads(served.ask("GET", "/v1/models", **OWN)[1])["data"][0]["id"] == "other"
        print(f"{len(load.found)} requests, {swapped - began:.1f} s until the reply")
        code, out, err = served.end(signal.SIGTERM)
    assert code == 0 and "codespec: the models are replaced" in out and "Traceback" not in err


def test_a_stream_ends_with_its_own_model(models: Models, other: Path, tmp_path: Path) -> None:  # noqa: F811
    with reloading(models, tmp_path) as served:
        body = {"prefix": PROMPTS[0], "max_tokens": 300, "shape": "raw", "speculate": False}
        status, whole = served.ask("POST", PATH, body, **OWN)
        connection = served.open_as(PATH, body, OWN)
        reply = connection.getresponse()
        first = reply.read1(50)
        assert reload(served, target=str(other), drafter="none")[0] == 200
        rest = reply.read()
        connection.close()
        assert status == 200 and pieces(first + rest) == pieces(whole)


def pieces(data: bytes) -> str:
    events = [block.split("\ndata: ") for block in data.decode().split("\n\n")[:-1]]
    return "".join(json.loads(value)["text"] for name, value in events if name == "event: text")


@pytest.mark.parametrize("unload_first", [False, True])
def test_a_failed_load_keeps_the_old_model_and_says_why(
    unload_first: bool,
    models: Models,  # noqa: F811
    tmp_path: Path,
) -> None:
    broken = write_model(tmp_path / "broken", "gpt2", 3)
    (broken / "model.safetensors").write_bytes(b"\0" * 100)
    with reloading(models, tmp_path) as served:
        old = texts(served)
        for body in ({"target": str(broken)}, {"target": "no/such"}, {"model": "no-such"}, {"drafter": "./nowhere"}):
            status, said = reload(served, **body, unload_first=unload_first)
            assert status == 400 and said["error"]["message"].startswith("The old model is kept ("), said
        assert reload(served, more=1)[0] == reload(served, target=1)[0] == 400
        assert texts(served) == old
        status, said = reload(served, unload_first=unload_first)
        assert status == 200 and said["target"] == "target", said
        assert texts(served) == old, "the same settings, read again"


def test_who_has_a_deadline_does_not_wait_for_the_load(models: Models, other: Path, tmp_path: Path) -> None:  # noqa: F811
    """The old model is unloaded first, and the new one takes seconds."""
    with reloading(models, tmp_path) as served:
        asked = threading.Thread(target=reload, args=(served,), kwargs={"target": str(other), "unload_first": True})
        asked.start()
        assert wait_for(lambda: served.ask("GET", "/ready")[0] == 503)
        assert served.ask("GET", "/health")[0] == 200, "the process lives"
        began = time.monotonic()
        status, message, _ = complete(served, PROMPTS[0], deadline_ms=30)
        spent = time.monotonic() - began
        patient = complete(served, PROMPTS[0])
        asked.join(120)
        assert (status == 503 and "being replaced" in message) or spent < 1, (status, message, spent)
        assert patient[0] == 200


def test_only_the_owner_may(models: Models, tmp_path: Path) -> None:  # noqa: F811
    with reloading(models, tmp_path) as served:
        assert served.ask("POST", RELOAD, {})[0] == 401
    homes = user_environment(XDG_STATE_HOME=str(tmp_path / "more"))
    with daemon(*models.flags, env=homes) as served:
        status, data = served.ask("POST", RELOAD, {})
        assert status == 403 and b"owner's token" in data
