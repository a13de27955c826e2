"""`codespec bench serve` from the command line to tables and JSON, with tiny random models and a real daemon."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from codespec_lab.bench import daemon
from codespec_lab.bench.daemon import PHASES, Pass, Reply
from codespec_lab.bench.serve_summary import Cell, keystrokes, mismatches, overhead
from codespec_lab.bench.sites import serve_sites
from codespec_lab.bench.statistics import percentiles
from codespec_lab.bench.typing_sites import TypingSite, keystroke_bodies, keystroke_sites
from codespec_lab.corpus.documents import Document, write_documents

from codespec.api.config import EngineConfig
from codespec.api.types import CompletionRequest
from codespec.store.machine import processor
from tests.cli.conftest import Command, Models, command, light_models, models, plain_environment
from tests.server import fakes
from tests.server.daemons import serving
from tests.server.fakes import FakeEngine

__all__ = ["command", "light_models", "models", "plain_environment"]


@pytest.fixture
def held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two projects without this machine's library."""
    monkeypatch.setattr("codespec_lab.corpus.held_out.held_out_files", list)
    text = "".join(f"def area{i}(width):\n    result = width * {i}\n    return result\n\n\n" for i in range(40))
    documents = [Document(name, f"{name}.py", "python", text.replace("area", name)) for name in ("disc", "cube")]
    write_documents(tmp_path / "held_out.jsonl.gz", documents)
    return tmp_path / "held_out.jsonl.gz"


def test_the_whole_bench(held_out: Path, light_models: Models, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "new" / "serve.json"
    words = ["bench", "serve", *light_models.flags, "--held-out", held_out, "--limit", "3", "--max-tokens", "12"]
    done = command(*words, "--concurrency", "4,1", "--keystrokes", "8", "--json", out)
    assert done.code == 0, done.err
    assert "serve [" in done.err and "24 of 24 texts are the same\n" in done.out
    text = out.read_text(encoding="utf-8")
    found = json.loads(text)
    assert str(tmp_path) not in text and found["settings"]["places"] == 6
    assert found["machine"]["processor"] == processor().label and processor().label in done.out
    section = found["daemons"]["own"]
    assert section["daemon"]["mode"] == section["mode_after"] == "exact"
    assert [cell["concurrency"] for cell in section["cells"]] == [1, 4] and section["daemon"]["slots"] == 4
    for cell in section["cells"]:
        assert cell["texts"] == cell["texts_alike"] == 12
        assert cell["off"]["drafted"] == 0 < cell["on"]["drafted"]
        assert cell["off"]["committed"] == cell["on"]["committed"] > 0
        assert cell["off"]["requests"] == cell["on"]["requests"] == 6
        assert cell["faster"]["low"] <= cell["faster"]["ratio"] <= cell["faster"]["high"]
    typed = section["keystrokes"]
    assert typed["warm"]["requests"] == 7 * typed["cold"]["requests"] == 14
    assert typed["warm"]["new_tokens"] < typed["cold"]["new_tokens"]
    assert section["overhead"]["off"]["requests"] == 6 and section["overhead"]["typing"]["requests"] == 14
    assert section["overhead"]["on"]["beyond_steps_ms"]["p50"] > section["overhead"]["on"]["wire_ms"]["p50"] > 0.0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--held-out", "none.gz"], "There is no corpus at none.gz"),
        (["--prompts", "none.jsonl"], "none.jsonl can't be read"),
        (["--concurrency", "1,x"], "must be a whole number of 1 or more"),
        (["--target", "./none"], "There is no model folder none"),
        (["--url", "http://127.0.0.1:1"], "No codespec daemon answers there"),
        (["--url", "nowhere"], "is not an address"),
        (["--url", "http://127.0.0.1:1", "--shape", "qwen2.5-0.5b"], "leave out --shape"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], sentence: str, held_out: Path, command: Command) -> None:
    given = [] if "--held-out" in words else ["--held-out", held_out]
    done = command("bench", "serve", *given, "--limit", "1", "--max-tokens", "4", *words)
    assert done.code == 2 and "Traceback" not in done.err, done.err
    assert sentence in done.err.splitlines()[-1] and done.err.splitlines()[-1].endswith(".")


def test_our_own_daemon_compares_nothing_in_idle_time(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """It also ignores what it learned earlier."""
    written: list[dict[str, Any]] = []

    def start(words: list[str], **how: object) -> None:
        file = words[words.index("--config") + 1]
        written.append(tomllib.loads(Path(file).read_text(encoding="utf-8")))
        raise KeyboardInterrupt

    monkeypatch.setattr(daemon.subprocess, "Popen", start)
    config = EngineConfig(target=str(models.target), caps={"comment": 3})
    with pytest.raises(KeyboardInterrupt), daemon.own_daemon(config, 7):
        pass
    assert written[0]["serve"] == {"queue": 7} and written[0]["learn"] is False


def test_a_daemon_that_runs(held_out: Path, command: Command) -> None:
    """A daemon that was already running; its refusal of a request is passed on."""
    with serving(FakeEngine(), slots=2) as served:
        words = ["bench", "serve", "--url", f"http://127.0.0.1:{served.port}", "--held-out", held_out]
        done = command(*words, "--limit", "2", "--max-tokens", "4", "--concurrency", "2", "--keystrokes", "0")
        assert done.code == 0 and "8 of 8 texts are the same\n" in done.out, done.err
        served.daemon.stopping = True
        assert command(*words).err.splitlines()[-1].startswith("codespec: The daemon can't be measured: The daemon is")


def test_a_daemon_that_changes_texts_is_an_error(held_out: Path, command: Command, tmp_path: Path) -> None:
    """The last character of a text is another with speculation; in fast mode that is no fault, but leaving exact mode
    on the way is one.
    """

    def changed(request: CompletionRequest) -> str:
        answer = fakes.answer(request)
        return answer[:-1] + "!" if request.speculate else answer

    out = tmp_path / "serve.json"
    small = ("--limit", "2", "--max-tokens", "4", "--concurrency", "2", "--keystrokes", "0")
    words = ["bench", "serve", "--held-out", held_out, "--json", out, *small]
    outcomes = []
    for mode in ("exact", "fast"):
        engine = FakeEngine(answer=changed)
        engine.mode = mode
        with serving(engine, slots=2) as served:
            outcomes.append(command(*words, "--url", f"http://127.0.0.1:{served.port}"))
    done, fast = outcomes
    assert done.code == 1 and "4 of 8 texts are the same\n" in done.out and out.exists(), done.err
    assert done.err.splitlines()[-1] == (
        "codespec: A text differs from plain decoding, which exact mode rules out (4 of 8 texts, 2 at once, own): "
        "report it with the output of `codespec doctor`."
    )
    assert fast.code == 0 and "4 of 8 texts are the same (fast mode: near-ties may differ)" in fast.out
    section = json.loads(out.read_text(encoding="utf-8"))["daemons"]["own"]
    section["daemon"]["mode"] = "exact"
    assert mismatches({"own": section}) == ["4 of 8 texts, 2 at once, own", "the daemon left exact mode, own"]


def replied(text: str, total: float, **stats: Any) -> Reply:
    counts = {"prompt_tokens": 10, "cached_tokens": 0, "rounds": 1, "drafted": 0, "accepted": 0, "committed": 5}
    drafter = {"drafter_prompt_tokens": 0, "drafter_cached_tokens": 0}
    done = {"stats": {**dict.fromkeys(PHASES, 1.0), "admit_ms": 0.0, **counts, **drafter, **stats}}
    return Reply(text, [text], done, first=total / 2, total=total)


def cell_of(on_seconds: float, on_text: str = "a") -> dict[str, Any]:
    cell = Cell(2, {})
    for site in range(10):
        cell.add(False, [site], Pass([replied("a", 1.0)], 1.0))
        cell.add(True, [site], Pass([replied(on_text, on_seconds)], on_seconds))
    return cell.as_dict()


def test_a_loss_and_a_changed_text_are_seen() -> None:
    assert cell_of(0.5)["faster"]["ratio"] == cell_of(0.5)["throughput"] == 2.0
    assert cell_of(1.0)["texts_alike"] == 20 and cell_of(1.0, "b")["texts_alike"] == 10


def test_figures() -> None:
    assert percentiles(range(1, 101)) == {"p50": 50, "p95": 95, "p99": 99} and percentiles([]) == {}
    waited = overhead([replied("a", 0.009, total_ms=7.0)])
    assert (waited["beyond_steps_ms"]["p50"], waited["wire_ms"]["p50"]) == pytest.approx((4.0, 2.0))
    sessions = [[replied("a", 1.0), replied("b", 1.0, cached_tokens=8), replied("c", 1.0, cached_tokens=7)]]
    found = keystrokes(sessions)
    assert found["target_reads_less"] == 20 / 5 and "drafter_reads_less" not in found
    assert (found["cold"]["new_tokens"], found["warm"]["new_tokens"]) == (10, 2.5)


def test_sites_have_text_on_both_sides(held_out: Path, tmp_path: Path) -> None:
    sites, _ = serve_sites(held_out, None, 6)
    assert len({(site.prefix, site.suffix) for site in sites}) == 6
    assert all(site.prefix and site.suffix and site.path.endswith(".py") for site in sites)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a", "suffix": "b"}\n' * 9)
    assert len(serve_sites(None, tmp_path / "prompts.jsonl", 4)[0]) == 4


def test_a_line_is_typed(held_out: Path) -> None:
    first, second = keystroke_sites(held_out, 2)
    assert first.name != second.name and first.begin > len(first.text) // 2 - 100
    bodies = list(keystroke_bodies(first, 100))
    assert [body["prefix"] + first.text[first.begin + n :] for n, body in enumerate(bodies)] == [first.text] * len(
        bodies
    )
    assert {body["suffix"] for body in bodies} == {first.text[first.end :]} and bodies[0]["suffix"].startswith("\n")


def test_what_is_far_above_the_cursor_is_not_sent() -> None:
    site = TypingSite("a", "python", "x" * 100_000 + "word\n", 100_000, 100_004)
    body = list(keystroke_bodies(site, 9))[3]
    assert body["prefix_offset"] + len(body["prefix"]) == 100_003 and len(body["prefix"]) == 65_536
