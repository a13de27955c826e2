"""The requested model, the daemon's model and the one it offers; and restarts of a daemon."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from codespec_lsp.daemon import Daemons
from codespec_lsp.settings import EditorSettings
from codespec_lsp.status import Status, daemon_note, read_model_offer

from codespec import __version__
from codespec.client.connections import ProvenConnections
from codespec.client.daemon_client import DaemonClient, Health
from codespec.client.starter import Starter, command_line, serve_command
from codespec.errors import DaemonError
from tests.lsp.conversation import run, until
from tests.lsp.fake_daemon import FakeDaemon, editor, talking
from tests.lsp.test_daemon_process import TINY, daemons, end_all, free_port, hello

OFFER = {"model": "smollm2-135m", "bytes": 92_871_040}
STARTER = Health("ready", target="codespec-starter", drafter="small", offer=OFFER, names=("starter",))
CODER = Health("ready", model="qwen2.5-coder-0.5b", names=("qwen2.5-coder-0.5b", "Qwen/Qwen2.5-Coder-0.5B"))
SENTENCE = "The small starter pair answers: `codespec models pull smollm2-135m` (93 MB) brings a real one."


pytestmark = pytest.mark.usefixtures("own_state")


@pytest.mark.parametrize(
    ("health", "settings", "note"),
    [
        (STARTER, {}, SENTENCE),
        (Health("ready", target="smollm2-135m", model="smollm2-135m"), {}, ""),
        (Health("ready", target="smollm2-135m", model="smollm2-135m"), {"model": "smollm2-135m"}, ""),
        (STARTER, {"url": "http://192.0.2.1:8765"}, ""),  # its models are elsewhere
        (STARTER, {"model": "starter"}, ""),  # a model that it chose itself
        (CODER, {"model": "Qwen/Qwen2.5-Coder-0.5B"}, ""),
        (CODER, {"model": "qwen/qwen2.5-coder-0.5b"}, ""),
        (CODER, {"model": "Qwen2.5-Coder-0.5B"}, ""),
        (Health("starting", offer=OFFER), {}, ""),
        (Health("absent"), {"model": "smollm2-135m"}, ""),
        (Health("ready", offer={"model": 3, "bytes": None}), {}, ""),
        (
            STARTER,
            {"model": "smollm2-135m"},
            "The daemon at http://127.0.0.1:8765 was started with codespec-starter and not with smollm2-135m: restart "
            "the daemon, or unset codespec.model.",
        ),
    ],
)
def test_what_is_to_be_known(health: Health, settings: dict[str, Any], note: str) -> None:
    assert daemon_note(health, EditorSettings(**settings)) == Status(message=note)


def test_a_daemon_of_another_version_is_a_warning_with_the_fix() -> None:
    old = replace(STARTER, version="0.0.9")
    here = daemon_note(old, EditorSettings())
    versions = f"is codespec 0.0.9, the language server {__version__}"
    assert here.kind == "Warning"
    assert here.message == f"The daemon at http://127.0.0.1:8765 {versions}: restart the daemon."
    there = daemon_note(old, EditorSettings(url="http://192.0.2.1:8765"))
    assert there.message.endswith(": install one version on both machines.")
    assert daemon_note(replace(STARTER, version=__version__), EditorSettings()).message == SENTENCE
    assert daemon_note(STARTER, EditorSettings()).kind == "Normal", "one that tells none"
    assert daemon_note(replace(old, state="starting"), EditorSettings()).kind == "Normal"


def test_an_offer_names_this_installations_own_command() -> None:
    offer = read_model_offer(STARTER, EditorSettings())
    assert offer == {
        **OFFER,
        "message": SENTENCE,
        "command": [sys.executable, "-P", "-m", "codespec", "models", "pull", "smollm2-135m"],
    }


def test_the_model_that_is_set_goes_to_the_daemon_that_is_started() -> None:
    seen: list[list[str]] = []

    def command(port: int, arguments: Any) -> list[str]:
        seen.append(list(arguments))
        return serve_command(port, arguments)

    found = Daemons(command)
    found.find(EditorSettings(model="smollm2-135m", daemon_arguments=("--threads", "2")))
    found.find(EditorSettings())
    assert seen == [["--on-demand", "--model", "smollm2-135m", "--threads", "2"], ["--on-demand"]]


def says(monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """Make the fake daemon report more about itself."""

    async def health(_fake: FakeDaemon, _request: Any) -> Any:
        from aiohttp import web

        return web.json_response({"status": "ok", "version": __version__, "target": "big", "drafter": "small", **more})

    monkeypatch.setattr(FakeDaemon, "health", health)


def test_the_status_warns_of_a_daemon_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, version="0.0.9")

    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.open("x = \n")
            assert await client.texts(0, 4) == ["x = 1"], "it is served all the same"
            await until(lambda: client.heard("didChangeStatus"))
            status = await client.status()
            assert status["kind"] == "Warning" and status["message"].endswith(": restart the daemon.")

    run(scenario())


def test_an_offer_is_told_once_and_stands_in_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, offer=OFFER, model="")

    async def scenario() -> None:
        async with talking() as (client, fake):
            assert (await client.status())["message"] == "" and not client.heard("codespec/offer")
            fake.script = ["1"]
            client.open("x = \n")
            assert await client.texts(0, 4) == ["x = 1"]
            assert (await client.hear("codespec/offer"))["model"] == "smollm2-135m"
            status = await client.status()
            assert (status["kind"], status["message"]) == ("Normal", SENTENCE)
            assert status["daemon"]["offer"] == OFFER
            client.type(2, 0, 4, "y")
            assert await client.texts(0, 5) == ["x = y1"]
            client.notify("workspace/didChangeConfiguration", {"settings": {"codespec": {"alternatives": 2}}})
            client.type(3, 0, 5, "z")
            assert await client.texts(0, 6) == ["x = yz1"]
            await client.status()
            assert len(client.heard("codespec/offer")) == 1 and not client.heard("window/showMessage")

    run(scenario())


def test_another_model_than_the_one_that_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, model="", names=["starter"])

    async def scenario() -> None:
        async with talking(model="smollm2-135m") as (client, fake):
            fake.script = ["1"]
            client.open("x = \n")
            await client.texts(0, 4)
            await until(lambda: any("started with" in told["message"] for told in client.heard("didChangeStatus")))
            assert "with big and not with smollm2-135m: restart the daemon" in (await client.status())["message"]
            client.notify("workspace/didChangeConfiguration", {"settings": {"codespec": {"model": "starter"}}})
            client.type(2, 0, 4, "y")
            await client.texts(0, 5)
            await until(lambda: client.heard("didChangeStatus")[-1]["message"] == "")

    run(scenario())


def test_a_daemon_that_an_editor_started_is_restarted_from_any(begun: Path) -> None:
    async def scenario() -> None:
        settings = EditorSettings(url=f"http://127.0.0.1:{free_port()}", budget_ms=60_000)
        async with editor(settings, daemons(TINY, begun)) as one:
            await hello(one)
            reply = await one.request("workspace/executeCommand", {"command": "codespec.restartDaemon"})
            assert reply["result"] == {"message": ""}
            assert len(list(begun.iterdir())) == 2, "the first one ended, and another began"
            one.type(2, 0, 4, "y")
            assert await one.texts(0, 5) == ["x = y1"]
            assert (await one.status())["kind"] == "Normal"

    try:
        run(scenario())
    finally:
        end_all(begun)


def test_a_daemon_that_the_user_started_is_left_alone() -> None:
    async def scenario() -> None:
        async with talking(start_daemon=True) as (client, fake):
            fake.script = ["1"]
            reply = await client.request("workspace/executeCommand", {"command": "codespec.restartDaemon"})
            message = reply["result"]["message"]
            assert "was not started by an editor: stop that daemon and start it again yourself" in message
            assert (await client.status())["kind"] == "Warning"
            client.open("x = \n")
            assert await client.texts(0, 4) == ["x = 1"], "it goes on"

    run(scenario())


def starter(port: int, command: list[str]) -> Starter:
    return Starter(DaemonClient(ProvenConnections(f"http://127.0.0.1:{port}")), command, port=port)


def write_number(tmp_path: Path, port: int, text: str) -> None:
    place = tmp_path / "state" / "codespec" / f"daemon-{port}.pid"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


@pytest.mark.parametrize("text", ["", "no number", "-1", "0", str(os.getpid())])
def test_no_other_process_is_ended(text: str, tmp_path: Path) -> None:
    """Process ids are reused: another process may have the daemon's old id."""
    write_number(tmp_path, 1, text)

    async def scenario() -> None:
        with pytest.raises(DaemonError, match="was not started by an editor"):
            await starter(1, ["false"]).restart()

    run(scenario())


def test_one_that_another_language_server_started_is_found_by_its_words(tmp_path: Path) -> None:
    port = free_port()
    words = [sys.executable, "-c", "import time; time.sleep(600)", "serve", "--port", str(port), "--model", "m"]
    process = subprocess.Popen(words)
    try:
        asyncio.run(_until_it_has_words(process.pid))
        assert f" serve --port {port} --model m" in command_line(process.pid)
        write_number(tmp_path, port, str(process.pid))
        assert starter(port, words).serves(process.pid)
        assert not starter(port + 1, words).serves(process.pid), "it is another port's"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert command_line(process.pid) == "" and not starter(port, words).serves(process.pid)


async def _until_it_has_words(number: int) -> None:
    await until(lambda: "serve" in command_line(number))
