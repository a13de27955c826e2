"""`codespec complete` with a running daemon, as real processes.

Without flags of the models it uses the daemon, with the same output as an engine of the same models here. Every reason
not to use it is one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from codespec.client.proof import PATH
from codespec.server.engine_thread import EngineThread
from tests.cli.conftest import SOURCE, Command, Models
from tests.cli.processes import ENGINE, LIGHT, Ended, fork, run, user_environment
from tests.cli.test_light import ABSENT
from tests.lsp.impostors import Answer, impostor, knows_nothing, plays_daemon
from tests.server.daemons import serving_load, serving_source, wait_for
from tests.server.test_faults import Loading
from tests.server.test_process import Process, daemon

LOADING = "codespec: loading the models here: "


class Asking:
    """A user's daemon, and `codespec complete` next to it."""

    def __init__(self, models: Models, served: Process, folder: Path) -> None:
        self.flags = ["--local", *models.flags, "--proposers", "draft_model"]  # as the daemon's
        self.served, self.folder = served, folder
        self.file = folder / "shapes.py"
        self.file.write_text(SOURCE)
        self.environment = {"CODESPEC_SERVE_PORT": str(served.port), "XDG_STATE_HOME": str(folder)}

    def complete(self, *words: str, torch: bool = False) -> Ended:
        modules, before = (ENGINE, "") if torch else (LIGHT, ABSENT.format(blocked=("torch",)))
        line = ("complete", f"{self.file}:11:20", "--max-tokens", "16", *words)
        return fork(*line, modules=modules, before=before, **self.environment)

    def here(self, *words: str) -> Ended:
        """Complete with the daemon's models in the command's own process."""
        return self.complete(*self.flags, *words, torch=True)


@pytest.fixture(scope="module")
def asking(light_models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    folder = tmp_path_factory.mktemp("asking")
    flags = [*light_models.flags, "--proposers", "draft_model"]
    with daemon(*flags, env=user_environment(XDG_STATE_HOME=str(folder))) as served:
        served.until_ready()
        yield Asking(light_models, served, folder)


def untimed(out: str) -> str:
    return re.sub(r"\d+ ms", "… ms", out)


# Shape and output format are independent: every shape in JSON (the most detailed), and every format for one shape.
RAW, BY_BLOCK, UNAIDED = ("--shape", "raw"), ("--shape", "block", "--no-heal"), ("--no-speculation",)
BOTH_WAYS = [("--json", RAW), ("--json", BY_BLOCK), ("--json", UNAIDED), ("--show-draft", RAW), ("", RAW)]


@pytest.mark.parametrize(("printed", "shape"), BOTH_WAYS, ids=str)
def test_the_output_is_the_same_in_both_ways(printed: str, shape: tuple[str, ...], asking: Asking) -> None:
    words = [*shape, *([printed] if printed else [])]
    by_daemon, here = asking.complete(*words), asking.here(*words)
    assert (by_daemon.returncode, here.returncode) == (0, 0), by_daemon.stderr + here.stderr
    assert by_daemon.stderr == here.stderr
    if printed != "--json":
        assert untimed(by_daemon.stdout) == untimed(here.stdout)
        return
    one, other = json.loads(by_daemon.stdout), json.loads(here.stdout)
    assert [one[name] for name in ("text", "finish_reason", "token_ids")] == [
        other[name] for name in ("text", "finish_reason", "token_ids")
    ]
    assert one.keys() == other.keys() and one["stats"].keys() == other["stats"].keys()
    for name in ("rounds", "drafted", "accepted", "committed", "prompt_tokens", "ended", "notes", "by_context"):
        assert one["stats"][name] == other["stats"][name], name


def test_sampled_text_is_the_same(asking: Asking) -> None:
    words = ["--temperature", "0.8", "--seed", "7", "--shape", "raw"]
    by_daemon, here = asking.complete(*words), asking.here(*words)
    assert by_daemon.stdout == here.stdout != "" and by_daemon.returncode == here.returncode == 0


@pytest.mark.parametrize("words", [["--local"], ["--device", "cpu"], ["--model", "starter"], ["--policy", "fixed:2"]])
def test_local_and_flags_of_the_models_do_not_ask(words: list[str], asking: Asking) -> None:
    done = asking.complete(*words, "--dtype", "bfloat16")
    assert "torch is not installed" in done.stderr and "daemon" not in done.stderr


def test_a_request_that_the_daemon_refuses_is_one_sentence(asking: Asking) -> None:
    done = asking.complete("--max-tokens", "-1")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1) and "max_tokens" in done.stderr


def test_a_long_file_is_cut_around_the_cursor(asking: Asking) -> None:
    text = "value = 1\n" * 8000
    file = asking.folder / "long.py"
    file.write_text(text)
    words = ("complete", f"{file}:7000:1", "--max-tokens", "4", "--shape", "raw")
    done = fork(*words, modules=LIGHT, before=ABSENT.format(blocked=("torch",)), **asking.environment)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(knows_nothing, "can't prove that it is yours"), (plays_daemon, "requires a token (CODESPEC_SERVE_TOKEN)")],
    ids=["knows nothing", "plays"],
)
def test_an_impostor_gets_no_text(
    answer: Answer, reason: str, light_models: Models, source: Path, tmp_path: Path
) -> None:
    with impostor(answer) as one:
        words = ["complete", f"{source}:11:20", "--max-tokens", "4"]
        models = {"CODESPEC_TARGET": str(light_models.target), "CODESPEC_DRAFTER": str(light_models.drafter)}
        models["CODESPEC_DTYPE"] = light_models.dtype
        port = str(one.port)
        done = fork(*words, modules=ENGINE, CODESPEC_SERVE_PORT=port, XDG_STATE_HOME=str(tmp_path), **models)
        assert one.asked == [f"POST {PATH}"] and "circumference" not in one
    assert done.returncode == 0 and done.stdout.strip()
    assert done.stderr.splitlines()[0] == f"{LOADING}the daemon at {one.url} can't be used (it {reason})"


def test_nobody_there_is_no_news(light_models: Models, source: Path) -> None:
    """An interpreter of its own, which also has to end well after a completion."""
    done = run("complete", f"{source}:11:20", *light_models.flags, "--max-tokens", "4")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(name="never_here")
def fixture_never_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> None:
        raise AssertionError("the daemon's models are loaded already, or soon")

    monkeypatch.setattr("codespec.cli.complete.load_and_complete", load)


@pytest.mark.usefixtures("never_here")
def test_a_daemon_that_loads_its_models_is_waited_for(
    command: Command, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Loading()
    with serving_load(load, ready=False) as served:
        monkeypatch.setenv("CODESPEC_SERVE_PORT", str(served.port))
        monkeypatch.setattr("codespec.cli.complete.time.sleep", lambda _: load.go.set())
        done = command("complete", f"{source}:11:20")
    assert done.code == 0 and done.out.strip()
    url = f"http://127.0.0.1:{served.port}"
    assert (
        done.err.startswith(f"codespec: waiting for the daemon at {url} (loading the models")
        and done.err.count("\n") == 1
    )


@pytest.mark.usefixtures("never_here")
def test_an_idle_daemon_loads_its_models_again(command: Command, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Loading()
    load.go.set()
    with serving_source(EngineThread(load, 0.02)) as served:  # type: ignore[arg-type]
        assert wait_for(lambda: served.source.state == "idle")
        monkeypatch.setenv("CODESPEC_SERVE_PORT", str(served.port))
        done = command("complete", f"{source}:11:20")
    assert (done.code, done.err) == (0, "") and done.out.strip()
