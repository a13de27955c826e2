"""`codespec bench typing`: a typist with the real language server, before a daemon whose texts a test chooses; and
the whole bench, before an engine of no sense, and at length with tiny random models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from codespec_lab.bench.typing.editor import Editor, Proxy, language_server, proxy_of
from codespec_lab.bench.typing.summary import record
from codespec_lab.bench.typing.typist import Key, Typed, Typist, complete_unhurried, keystrokes
from codespec_lab.bench.typing_sites import TypingSite
from codespec_lab.corpus.documents import Document, write_documents
from codespec_lsp.completions import MAX_AHEAD

from codespec.api.config import EngineConfig
from codespec.api.types import CompletionRequest
from codespec.store.machine import processor
from codespec.user_folders import is_own_socket, socket_of
from tests.cli.conftest import Command, Models, command, models, plain_environment
from tests.lsp.conversation import run, until
from tests.lsp.fake_daemon import FakeDaemon, daemon
from tests.server.daemons import serving
from tests.server.fakes import FakeEngine, FakeSequence

__all__ = ["command", "models", "plain_environment"]

EXACT = {"off": "exact", "on": "exact"}
PATIENCE = 30.0  # seconds after which a suggestion has arrived on any machine
TYPED = "alpha = beta\n    gamma = delta"
SITE = TypingSite("a.py", "python", f"if x:\n    {TYPED}\ny = 1\n", 10, 10 + len(TYPED))


@asynccontextmanager
async def desktop() -> AsyncIterator[tuple[Editor, Proxy, FakeDaemon]]:
    async with (
        daemon() as fake,
        proxy_of(f"http://127.0.0.1:{fake.port}") as proxy,
        language_server(proxy.url) as editor,
    ):
        yield editor, proxy, fake


async def type_keys(editor: Editor, proxy: Proxy, keys: Sequence[Key], taking: bool = False) -> Typed:
    typed = await Typist(editor, SITE, keys, taking).type()
    editor.close(SITE)
    typed.streams = proxy.streams
    return typed


def test_the_server_has_what_is_typed_and_old_requests_are_cancelled() -> None:
    async def scenario() -> None:
        async with desktop() as (editor, proxy, fake):
            typed = await type_keys(editor, proxy, keystrokes(TYPED, 1, pace=3.0))
            assert typed.keys == len(keystrokes(TYPED, 1)) and typed.taken == 0
            states = {SITE.after(at) for at in range(len(TYPED) + 1)}
            bodies = [asked.body for asked in fake.asked]
            assert len(bodies) > 3 and {body["prefix"] + body["suffix"] for body in bodies} <= states
            last = {SITE.after(len(TYPED) - ahead) for ahead in range(MAX_AHEAD + 1)}
            assert bodies[-1]["prefix"] + bodies[-1]["suffix"] in last
            await until(lambda: all(asked.gone.is_set() for asked in fake.asked))
            superseded = [request for request in typed.requests if request.answered is None]
            assert len(superseded) > len(typed.requests) / 2, "a key does not wait for an answer"

    run(scenario())


def test_the_proxy_is_reached_by_a_socket_as_a_daemon_is() -> None:
    async def scenario() -> None:
        async with desktop() as (editor, proxy, fake):
            own = socket_of(urlsplit(proxy.url).port or 0)
            assert is_own_socket(own)
            await type_keys(editor, proxy, keystrokes(TYPED, 1, pace=3.0))
            assert fake.asked, "over its port the proxy has no proof to offer"
        assert not own.exists()

    run(scenario())


def test_tab_takes_what_is_right() -> None:
    async def scenario() -> None:
        async with desktop() as (editor, proxy, fake):
            fake.script = ["lpha = ", "beta\n", "wrong"]
            keys = keystrokes(TYPED, 1, pace=2.0)
            typed = await type_keys(editor, proxy, [Key(0, "a", 0.1), Key(1, "l", PATIENCE), *keys[2:]], taking=True)
            assert typed.taken == len("lpha = beta") and typed.keys == len(keys) - typed.taken
            after = next(request for request in typed.requests if request.cause == "tab")
            assert (after.at, after.text) == (12, "\nwrong")
            assert {body.body["prefix"] + body.body["suffix"] for body in fake.asked} >= {SITE.text}
            counters = await editor.counters()
            assert (counters["partlyAccepted"], counters["accepted"]) == (1, 0)
            rows = record(typed, SITE)["questions"]
            assert max(row["matching"] for row in rows if row["at"] == 1) == len("lpha = beta\n")
            assert all(0.0 < row["there_ms"] < row["answered_ms"] for row in rows if "back_ms" in row)

            fake.script = ["lpha = beta"]
            whole = await type_keys(editor, proxy, [Key(0, "a", 0.1), Key(1, TYPED[1:12], PATIENCE), *keys[12:]], True)
            assert whole.taken == 11 and (await editor.counters())["accepted"] == 1

    run(scenario())


def test_there_is_more_and_no_haste() -> None:
    async def scenario() -> None:
        async with desktop() as (editor, _, fake):
            typist = Typist(editor, SITE, [Key(0, "a", 0.1), Key(1, TYPED[1:], 3600.0)], taking=False)
            typing = asyncio.create_task(typist.type())
            first = await fake.question()
            first.say("lpha = ")
            await asyncio.sleep(0.8)
            first.say("beta")
            first.end()
            shown = typist.typed.requests
            await until(lambda: shown[-1].text == "lpha = beta")
            assert shown[0].cause == "key" and {request.cause for request in shown[1:]} == {"more"}
            assert all(later.text.startswith(before.text) for before, later in pairwise(shown))
            typing.cancel()
            await asyncio.gather(typing, return_exceptions=True)
            editor.close(SITE)
            unhurried = asyncio.create_task(complete_unhurried(editor, SITE, 3))
            asked = await fake.question(len(fake.asked) + 1)
            await asyncio.sleep(0.8)
            asked.say("something")
            asked.end()
            assert await unhurried == "something" and asked.body["prefix"].endswith("    alp")

    run(scenario())


@pytest.fixture
def held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files without this machine's library; the digest of the code stays the same."""
    monkeypatch.setattr("codespec_lab.corpus.held_out.held_out_files", list)
    monkeypatch.setattr("codespec_lab.bench.harness.code_digest", lambda: "the code")
    text = "".join(f"def area{i}(width):\n    half = width * {i}\n    result = half + half\n\n\n" for i in range(20))
    documents = [Document(name, f"{name}.py", "python", text.replace("area", name)) for name in ("disc", "cube")]
    write_documents(tmp_path / "held_out.jsonl.gz", documents)
    return tmp_path / "held_out.jsonl.gz"


def check_sessions(section: dict[str, Any]) -> None:
    """Check that every site was typed the expected number of times and that the daemon got requests."""
    assert [session["cell"] for session in section["passes"]] == ["off", "on", "taking"]
    off, on, taking = section["passes"]
    assert off["place"] == on["place"] != taking["place"] and off["keys"] == on["keys"] > 40
    assert all(session["questions"] for session in section["passes"])
    assert section["summary"]["cells"]["on"]["overhead"]["there"]["p50"] > 0.0


@contextmanager
def fake_daemon(_config: EngineConfig, _queue: int) -> Iterator[str]:
    """A daemon around an engine that writes prefixes backwards."""
    with serving(FakeEngine(), slots=2) as served:
        yield f"http://127.0.0.1:{served.port}"


class WrongEngine(FakeEngine):
    """An engine whose text differs with speculation."""

    def submit(self, request: CompletionRequest) -> list[FakeSequence]:
        return super().submit(replace(request, prefix=f"{request.prefix}!"))


@contextmanager
def wrong_daemon(config: EngineConfig, queue: int) -> Iterator[str]:
    """Like `fake_daemon`, but speculation changes texts."""
    if not config.speculate:
        with fake_daemon(config, queue) as plain:
            yield plain
        return
    with serving(WrongEngine(), slots=2) as served:
        yield f"http://127.0.0.1:{served.port}"


def test_the_bench_and_going_on_with_it(
    held_out: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codespec_lab.bench.typing.scenario.own_daemon", fake_daemon)
    out = tmp_path / "new" / "typing.json"
    words = ["bench", "typing", "--held-out", held_out, "--limit", "1", "--pace", "12", "--json", out]
    done = command(*words)
    assert done.code == 0, done.err
    assert "type own [" in done.err and "change → answer" in done.out
    first = json.loads(out.read_text(encoding="utf-8"))["sections"]["own"]
    assert str(tmp_path) not in json.dumps(first)
    assert first["facts"]["machine"]["processor"] == processor().label and processor().label in done.out
    assert first["texts"] == {"compared": 1, "differing": [], "modes": EXACT, "modes_after": EXACT}
    assert "both daemons write the same text at 1 of 1 places" in done.out
    check_sessions(first)
    kept = {**first, "passes": first["passes"][:2]}
    out.write_text(json.dumps({"bench": "typing", "sections": {"own": kept}}), encoding="utf-8")
    assert command(*words).code == 0
    again = json.loads(out.read_text(encoding="utf-8"))["sections"]["own"]
    check_sessions(again)
    assert again["passes"][:2] == first["passes"][:2]
    other = command(*words[:-3], "11", "--json", out)
    assert other.code == 2 and "measured with another pace" in other.err.splitlines()[-1]

    monkeypatch.setattr("codespec_lab.bench.typing.scenario.own_daemon", wrong_daemon)
    wrong = command(*words)  # nothing is left to type, but both daemons are compared
    assert wrong.code == 1 and "both daemons write the same text at 0 of 1 places" in wrong.out, wrong.err
    differing = json.loads(out.read_text(encoding="utf-8"))["sections"]["own"]["texts"]["differing"]
    last = wrong.err.splitlines()[-1]
    assert differing == [first["passes"][0]["place"]] and f"rules out ({differing[0]}, own): report it" in last


@pytest.mark.full
def test_with_real_daemons(held_out: Path, models: Models, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "typing.json"
    done = command(
        *("bench", "typing", *models.flags, "--held-out", held_out, "--limit", "1", "--pace", "6", "--json", out)
    )
    assert done.code == 0, done.err
    section = json.loads(out.read_text(encoding="utf-8"))["sections"]["own"]
    check_sessions(section)
    assert all(session["tokens"] > 0 for session in section["passes"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--held-out", "none.gz"], "There is no corpus at none.gz"),
        (["--prompts", "none.jsonl", "--held-out", "none.gz"], "name one of them"),
        (["--pace", "0"], "must be a number above 0 and at most 100"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], sentence: str, command: Command) -> None:
    done = command("bench", "typing", *words)
    assert done.code == 2 and "Traceback" not in done.err and sentence in done.err.splitlines()[-1], done.err
