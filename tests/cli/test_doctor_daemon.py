"""`codespec doctor` on the port, the daemon, the token, the folders, the probe and the prompt length."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from codespec import __version__
from codespec.api.config import EngineConfig
from codespec.api.types import CompletionRequest
from codespec.cli import daemon_checks
from codespec.cli.daemon_checks import check_prompts
from codespec.engine.engine import Engine
from codespec.errors import ModelError
from codespec.server.engine_thread import EngineThread
from codespec.startup.tuning import ReadingSpeed
from tests.cli.conftest import Command, Look, Models, lines_of
from tests.cli.processes import TOKEN
from tests.cli.test_stats import folder, stranger  # noqa: F401
from tests.pairs import build, model
from tests.server import fakes
from tests.server.daemons import serving, serving_load, serving_source, wait_for
from tests.server.test_faults import Loading


def test_somebody_else_on_the_port(stranger: str, look: Look, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr("codespec.cli.options.SECONDS", 0.5)
    found = look("--url", stranger)
    assert found["port"].startswith(f"failed: {stranger} is used by ") and "choose another port" in found["port"]


def test_a_free_port(look: Look) -> None:
    assert look()["port"].endswith("is free") and "none runs" in look()["daemon"]


def test_a_daemon_says_how_long_its_prompts_are(look: Look) -> None:
    engine = fakes.FakeEngine()
    engine.prompt_budget = 16
    with serving(engine) as served:
        message = look("--url", f"http://127.0.0.1:{served.port}")["daemon"]
        assert message.startswith("ok: ready, model toy; reads 16 tokens of a new document (first_answer_ms), context ")


def test_a_daemon_that_is_ready_and_of_another_version(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(fakes.FakeEngine()) as served:
        url = f"http://127.0.0.1:{served.port}"
        found = look("--url", url)
        assert found["daemon"] == "ok: ready, model toy" and "memory" not in found, "the daemon has enough"
        assert "version" not in found
        monkeypatch.setattr("codespec.server.dialects.codespec.__version__", "0.0.1")
        message = f"warning: the daemon is codespec 0.0.1, this is {__version__}: restart the daemon"
        assert look("--url", url)["version"] == message


def test_an_idle_daemon_says_that_its_models_are_freed(look: Look) -> None:
    load = Loading()
    load.go.set()
    with serving_source(EngineThread(load, 0.02)) as served:  # type: ignore[arg-type]
        assert wait_for(lambda: served.source.state == "idle")
        found = look("--url", f"http://127.0.0.1:{served.port}")
        assert found["daemon"] == "ok: idle (models freed), model toy; the next request loads it"
        assert "needed" in found["memory"], "the daemon holds none of it now"
        assert served.source.state == "idle"


@pytest.mark.parametrize(
    ("error", "state"), [(None, "warning: starting"), (ModelError("x is broken: mend it"), "failed")]
)
def test_a_daemon_that_is_not_ready(error: Exception | None, state: str, look: Look) -> None:
    load = Loading(error)
    with serving_load(load, ready=False) as served:
        if error is not None:
            load.go.set()
            assert wait_for(lambda: served.source.state == "failed")
        found = look("--url", f"http://127.0.0.1:{served.port}")
        assert found["daemon"].startswith(state)
        assert ("(x is broken: mend it)" if error else "loading the models") in found["daemon"]
        load.go.set()


def test_the_token(look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    assert look("--token-file", file)["token"].endswith(f"can read {file}: run `chmod 600 {file}`")
    file.chmod(0o600)
    assert look("--token-file", file)["token"] == "ok: required"
    with serving(fakes.FakeEngine(), token=TOKEN) as served:
        url = f"http://127.0.0.1:{served.port}"
        assert (
            look("--url", url)["port"].startswith("warning")
            and look("--url", url, "--token-file", file)["port"][:2] == "ok"
        )
    assert "can't be read" in look("--token-file", tmp_path / "none")["token"]
    file.write_text("short")
    assert "too short or not printable ASCII: use" in look("--token-file", file)["token"]
    monkeypatch.setenv("CODESPEC_SERVE_HOST", "0.0.0.0")
    assert "Other machines can reach 0.0.0.0, and nothing authenticates them: give" in look()["token"]


def test_folders_that_cannot_be_written(look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    found = look()
    assert found["state"].startswith("warning: nothing can be saved in") and "set XDG_STATE_HOME" in found["state"]
    assert found["cache"].startswith("ok") and not list(tmp_path.glob("cache*")), "looking makes no folder"


class Fickle(fakes.FakeEngine):
    """Completes another text with speculation, or fails."""

    def submit(self, request: CompletionRequest) -> list[fakes.FakeSequence]:
        if request.speculate:
            request = CompletionRequest(prefix="BOOM" * self.breaks or "else", max_tokens=request.max_tokens)
        return super().submit(request)

    breaks = False


@pytest.mark.parametrize(
    ("breaks", "message"), [(False, "differs from its text without"), (True, "did not complete a short text (")]
)
def test_a_probe_of_a_daemon(breaks: bool, message: str, command: Command, models: Models) -> None:
    words = ("doctor", "--target", models.target, "--drafter", "none", "--url")
    with serving(fakes.FakeEngine()) as served:
        assert lines_of(command(*words, f"http://127.0.0.1:{served.port}"))["probe"].startswith(
            "ok: the daemon wrote 24"
        )
    engine = Fickle()
    engine.breaks = breaks
    with serving(engine) as served:
        found = lines_of(command(*words, f"http://127.0.0.1:{served.port}"))
    assert found["probe"].startswith("failed: the daemon") and message in found["probe"]


@pytest.mark.parametrize(("mode", "state"), [("exact", "failed"), ("fast", "warning")])
def test_a_probe_that_differs(
    mode: str, state: str, command: Command, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = Engine.complete

    def lie(engine: Engine, requests: list[CompletionRequest]) -> object:
        (request,) = requests
        return complete(engine, [CompletionRequest(prefix=request.prefix[request.speculate is True :], max_tokens=24)])

    monkeypatch.setattr(Engine, "complete", lie)
    found = lines_of(command("doctor", "--target", models.target, "--drafter", "none", "--mode", mode))
    assert found["probe"].startswith(f"{state}: speculation changed a short text")


def test_large_models_are_not_loaded_for_a_probe(
    command: Command, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_checks, "MAX_BYTES", 1e6)
    found = lines_of(command("doctor", "--target", models.target, "--drafter", "none"))
    assert found["probe"].startswith("ok: not tried, because loading would take long")
    assert "arithmetic" not in found and "prompts" not in found


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
        (SLOWEST, {}, "later than first_answer_ms even with the minimum number of tokens: close busy"),
    ],
)
def test_what_was_chosen(
    reading: ReadingSpeed, settings: dict[str, int], message: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codespec.startup.tuning.measure_again", lambda *_: reading)
    found = check_prompts(engine, EngineConfig(**settings))  # type: ignore[arg-type]
    assert message in f"{found.state}: {found.message}: {found.fix}"
