"""`codespec bench team` from the command line, with fake and real daemons, and its figures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from codespec_lab.bench import team
from codespec_lab.bench.team import IN_TIME, Change, figures, largest, report
from codespec_lab.bench.typing.typist import Key
from codespec_lab.corpus.documents import Document, write_documents

from codespec.client.connections import HttpConnection, HttpReply
from codespec.contract.types import CompletionRequest
from tests.cli.conftest import Command, Models, command, light_models, plain_environment
from tests.server import fakes
from tests.server.daemons import serving
from tests.server.fakes import FakeEngine

__all__ = ["command", "light_models", "plain_environment"]

BODY = "def area{n}(width):\n    half = width * {n}\n    result = half + half\n    return result\n\n\n"
TEXT = "".join(BODY.format(n=n) for n in range(40))


@pytest.fixture
def held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two projects with the same text, without this machine's library."""
    monkeypatch.setattr("codespec_lab.corpus.held_out.held_out_files", list)
    documents = [Document(name, f"{name}.py", "python", TEXT) for name in ("disc", "cube")]
    write_documents(tmp_path / "held_out.jsonl.gz", documents)
    return tmp_path / "held_out.jsonl.gz"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Type a key every 20 ms and pause for 700 ms before every tenth."""

    def keys(text: str, seed: int) -> list[Key]:
        return [Key(at, character, 0.02 if at % 10 else 0.7) for at, character in enumerate(text)]

    monkeypatch.setattr(team, "keystrokes", keys)


@pytest.fixture
def knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the fake engine write the rest of the line in the file."""

    def answer(request: CompletionRequest) -> str:
        rest = TEXT[len(request.prefix) :].partition("\n")[0] if TEXT.startswith(request.prefix) else ""
        return rest[: request.max_tokens] or "\n"

    monkeypatch.setattr(fakes, "answer", answer)


def run(command: Command, out: Path, *words: str | Path) -> dict[str, Any]:
    done = command("bench", "team", "--json", out, *words)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    assert str(out.parent) not in out.read_text(encoding="utf-8")
    assert "\n".join(report(found)) in done.out
    return found


@pytest.mark.usefixtures("quick", "knows")
def test_a_team_that_fits(held_out: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = set[str]()
    request = HttpConnection.request

    async def noted(self: Any, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> HttpReply:
        if path.endswith("/complete") and body is not None:
            sessions.add(headers["x-session-id"])
            assert json.loads(body)["document"] == headers["x-session-id"]
        return await request(self, method, path, body, headers)

    monkeypatch.setattr(HttpConnection, "request", noted)
    with serving(FakeEngine(), slots=4) as served:
        words = ("--url", f"http://127.0.0.1:{served.port}", "--held-out", held_out)
        found = run(command, tmp_path / "team.json", *words, "--developers", "3", "--seconds", "3", "--find")
    (one,) = found["runs"]
    assert one["fits"] and found["most"] == 3 and one["refused"] == 0 and len(sessions) >= 3
    assert one["requests"] > 3 and one["from_memory"] > one["requests"], (
        "keys that repeat the shown text send no request"
    )
    assert one["pause_ms"]["p95"] < 600 and one["in_time"] == 1.0
    assert one["right_in_time"] > 3 and one["right_share"] == 1.0


@pytest.mark.usefixtures("quick", "knows")
def test_a_team_that_does_not_fit(held_out: Path, command: Command, tmp_path: Path) -> None:
    """The engine is too slow even for one developer, so the search returns 0."""
    with serving(FakeEngine(pause=0.08), slots=1) as served:
        words = ("--url", f"http://127.0.0.1:{served.port}", "--held-out", held_out)
        found = run(command, tmp_path / "team.json", *words, "--developers", "3", "--seconds", "3", "--find")
        assert found["most"] == 0 and [one["developers"] for one in found["runs"]] == [1, 3]
        assert all(one["pause_ms"]["p95"] > 600 and one["right_share"] < 1.0 for one in found["runs"])
        assert found["runs"][1]["cancelled"] > 0
        done = command("bench", "team", *words, "--developers", "2", "--seconds", "2")
        assert "2 developers do not fit within 600 ms" in done.out and "--find finds how many" in done.out


@pytest.mark.usefixtures("quick")
def test_a_daemon_of_its_own(held_out: Path, light_models: Models, command: Command, tmp_path: Path) -> None:
    words = (*light_models.flags, "--held-out", held_out, "--developers", "2", "--seconds", "2")
    found = run(command, tmp_path / "team.json", *words)
    assert found["settings"]["own"] and found["runs"][0]["requests"] > 2 and found["daemon"]["mode"] == "exact"


def test_mistakes_are_one_sentence(held_out: Path, command: Command) -> None:
    for words, sentence in (
        (["--url", "http://127.0.0.1:1"], "No codespec daemon answers there"),
        (["--url", "nowhere"], "is not an address"),
        (["--prompts", "a"], "name one of them"),
        (["--developers", "0"], "must be a whole number of 1 or more"),
    ):
        done = command("bench", "team", "--held-out", held_out, *words)
        assert done.code == 2 and sentence in done.err.splitlines()[-1], done.err


def test_refused_requests_are_counted_and_are_late(
    held_out: Path, command: Command, tmp_path: Path, quick: None
) -> None:
    with serving(FakeEngine(pause=0.05), slots=1, queue=1) as served:
        words = ("--url", f"http://127.0.0.1:{served.port}", "--held-out", held_out)
        found = run(command, tmp_path / "team.json", *words, "--developers", "8", "--seconds", "3")
    assert found["runs"][0]["refused"] > 0 and not found["runs"][0]["fits"]


def test_only_pauses_decide() -> None:
    """Answers cancelled by the next key count only if the pause was long enough."""
    quick = [Change(0.0, pause=0.2, sent=True) for _ in range(50)]
    waited = [Change(0.0, pause=1.0, sent=True, answered=0.3, timely=4, right=4) for _ in range(19)]
    late = [Change(0.0, pause=2.0, sent=True, timely=1, right=5)]
    remembered = [Change(0.0, pause=0.1, answered=0.05)]
    found = figures([*quick, *waited, *late, *remembered], 2, 10.0)
    assert (found["changes"], found["requests"], found["cancelled"]) == (71, 70, 51)
    assert (found["pauses"], found["from_memory"], found["requests_a_second"]) == (20, 1, 7.0)
    assert (found["pause_ms"]["p50"], found["pause_ms"]["p95"], found["pause_ms"]["p99"]) == (300.0, 300.0, 2000.0)
    assert found["fits"] and found["in_time"] == 0.95
    assert found["right_in_time"] == 77 / 20 and found["right_share"] == 77 / 81
    assert not figures([*waited, *late, *late], 2, 10.0)["fits"]
    typed = [Change(0.0, sent=True, opens=True, cached=0.0), Change(0.0, sent=True, cached=0.0)]
    typed += [Change(0.0, sent=True, cached=0.9) for _ in range(3)]
    found = figures(typed, 1, 1.0)
    assert (found["cache_hits"], found["cached_share"]) == (0.75, pytest.approx(0.675))
    refused = Change(0.0, sent=True, refused=True)
    assert figures([refused], 1, 1.0)["pause_ms"]["p50"] > 1000 * IN_TIME


@pytest.mark.parametrize("most", range(10))
def test_bisection(most: int) -> None:
    asked = []

    async def fits(number: int) -> bool:
        asked.append(number)
        return number <= most

    assert asyncio.run(largest(fits, 10)) == most
    assert len(asked) <= 4 and 10 not in asked
