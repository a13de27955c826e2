"""`codespec complete` with tiny models: its output, which is the same with speculation, streaming and JSON."""

from __future__ import annotations

import json
import os
import re
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from codespec.api.types import Completion, CompletionRequest, Event, Stats
from codespec.cli.complete import why_empty
from codespec.engine.engine import Engine
from tests.cli.conftest import SOURCE, Command, Models, varies, write_model

SUMMARY = re.compile(r"(\d+) tokens in (\d+) rounds, (\d+) of (\d+) drafted accepted, \d+ ms \(.*\)")
TOKENS = 24


@pytest.fixture
def models(light_models: Models) -> Models:
    """Return the pair for the native kernels, which load in a tenth of the time."""
    return light_models


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[CompletionRequest]:
    """Record the requests that reach the engine, which still serves them."""
    seen: list[CompletionRequest] = []
    stream = Engine.stream

    def spy(engine: Engine, request: CompletionRequest) -> Iterator[Event]:
        seen.append(request)
        return stream(engine, request)

    monkeypatch.setattr(Engine, "stream", spy)
    return seen


@pytest.fixture
def place(source: Path) -> str:
    return f"{source}:11:20"  # inside `return math.pi …`


def parse(out: str) -> dict[str, Any]:
    """Return the single JSON object that was printed."""
    assert out.count("\n") == 1 and out.endswith("\n")
    found: dict[str, Any] = json.loads(out)
    return found


SAMPLED = ("--temperature", "0.8", "--seed", "7")


@pytest.mark.parametrize(("shape", "sampling"), [("auto", ()), ("raw", SAMPLED)])
def test_one_text_streamed_as_json_and_without_speculation(
    shape: str, sampling: tuple[str, ...], place: str, models: Models, command: Command
) -> None:
    words = ["complete", place, *models.flags, "--shape", shape, "--max-tokens", str(TOKENS), *sampling]
    streamed, whole, plain = command(*words), command(*words, "--json"), command(*words, "--json", "--no-speculation")
    found, target_alone = parse(whole.out), parse(plain.out)
    assert streamed.out == found["text"] + "\n"
    assert (found["text"], found["token_ids"]) == (target_alone["text"], target_alone["token_ids"])
    assert found["stats"]["drafted"] > 0 and target_alone["stats"]["drafted"] == 0
    assert all((done.code, done.err) == (0, "") for done in (streamed, whole, plain))


def test_json_holds_the_whole_completion(place: str, models: Models, command: Command) -> None:
    words = ["complete", place, *models.flags, "--shape", "raw", "--max-tokens", str(TOKENS), "--json"]
    found = parse(command(*words).out)
    assert set(found) == {"text", "finish_reason", "token_ids", "stats"}
    assert found["finish_reason"] == "length" and len(found["token_ids"]) == TOKENS
    stats = found["stats"]
    assert stats["committed"] == TOKENS and stats["rounds"] > 0 and stats["prompt_tokens"] > 0
    assert stats["total_ms"] > 0 and stats["notes"] == []
    by_source = stats["by_source"].values()
    assert (stats["drafted"], stats["accepted"]) == tuple(
        sum(counts[name] for counts in by_source) for name in ("drafted", "accepted")
    )


def test_one_seed_one_text(place: str, models: Models, command: Command) -> None:
    def text(*words: str) -> str:
        return str(
            parse(
                command("complete", place, *models.flags, "--shape", "raw", "--max-tokens", "12", "--json", *words).out
            )["text"]
        )

    first = text("--temperature", "0.8", "--seed", "1")
    assert text("--temperature", "0.8", "--seed", "1", "--draft-tokens", "3") == first
    assert text("--temperature", "0.8", "--seed", "-1") != first


def test_without_speculation_no_drafter_is_needed(place: str, models: Models, command: Command, tmp_path: Path) -> None:
    words = ["complete", place, *models.pair, "--drafter", tmp_path / "none", "--max-tokens", "2"]
    assert command(*words, "--no-speculation").code == 0
    command(*words).check_mistake("There is no model folder")


def test_no_heal_reaches_the_engine(
    place: str, models: Models, command: Command, requests: list[CompletionRequest]
) -> None:
    for words in ([], ["--no-heal"]):
        assert command("complete", place, *models.flags, "--max-tokens", "2", *words).code == 0
    assert [request.heal for request in requests] == [True, False]


def test_show_draft_tells_accepted_from_written(source: Path, models: Models, command: Command) -> None:
    """A target that drafts for itself has all drafts accepted, so brackets hold all but each round's bonus token."""
    end = f"{source}:{SOURCE.count(chr(10)) + 1}:1"
    itself = [*models.pair, "--drafter", models.target, "--warmup", "0", "--proposers", "draft_model"]
    itself += ["--no-heal"]  # so that ids are passed through
    words = ["complete", end, *itself, "--shape", "raw", "--max-tokens", str(TOKENS), "--policy", "fixed:8"]
    shown, found = command(*words, "--show-draft"), parse(command(*words, "--json").out)
    stats = found["stats"]
    *lines, summary = shown.out.splitlines()
    lines, why = lines[: -stats["rounds"]], lines[-stats["rounds"] :]
    assert lines.pop().startswith("step  accepted/drafted")
    assert all(re.fullmatch(r" +\d+  \d/\d  (cap|draft ended|no draft)", line) for line in why)
    numbers = [int(number) for number in SUMMARY.fullmatch(summary).groups()]  # type: ignore[union-attr]
    assert numbers == [stats[name] for name in ("committed", "rounds", "accepted", "drafted")]
    assert stats["accepted"] == stats["drafted"] > TOKENS // 2
    assert "\x1b" not in shown.out and re.search(r"\[[^\]]+\]", shown.out)
    assert letters("".join(lines)) == letters(found["text"])


def letters(text: str) -> str:
    """Return the text without brackets, line ends and truncated characters."""
    return re.sub(r"[\[\]\r\n\ufffd]", "", text)


def test_show_draft_shows_what_was_rejected(place: str, models: Models, command: Command) -> None:
    words = ["complete", place, *models.flags, "--proposers", "draft_model", "--shape", "raw", "--max-tokens", "8"]
    shown, found = command(*words, "--show-draft"), parse(command(*words, "--json").out)
    assert found["stats"]["rounds_none"] > 0
    assert len(shown.out) > len(found["text"]) + 2 * found["stats"]["rounds_none"]


@pytest.mark.parametrize("flag", ["--show-draft", "--shape=raw"])
def test_colours_on_a_terminal_only_where_drafts_are_shown(
    flag: str, place: str, models: Models, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, end = os.openpty()
    with os.fdopen(terminal, "rb"), os.fdopen(end, "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        assert (
            command("complete", place, *models.flags, "--proposers", "draft_model", "--max-tokens", "6", flag).code == 0
        )
        shown = b""
        while select.select([terminal], [], [], 0)[0]:  # a terminal delivers the output in pieces
            shown += os.read(terminal, 10_000)
    assert (b"\x1b[31;9m" in shown and b"\x1b[0m" in shown and b"\x1b[2m6 tokens in " in shown) == ("draft" in flag)
    assert (b"\x1b" in shown) == ("draft" in flag)


@pytest.mark.parametrize(
    ("text", "line", "column", "prefix"),
    [
        (SOURCE, 1, 1, ""),
        ("a = 1\r\nb = 2\r\nc", 2, 6, "a = 1\r\nb = 2"),
        ("s = '\U0001f469\u200d\U0001f467'\nt = s", 1, 8, "s = '\U0001f469\u200d"),
    ],
    ids=["start", "CRLF", "emoji"],
)
def test_places(
    text: str, line: int, column: int, prefix: str,
    tmp_path: Path, models: Models, command: Command, requests: list[CompletionRequest],
) -> None:  # fmt: skip
    file = tmp_path / "a.py"
    file.write_bytes(text.encode())
    done = command("complete", f"{file}:{line}:{column}", *models.flags, "--max-tokens", "4", "--shape", "line")
    assert (done.code, done.err) == (0, "")
    assert (requests[0].prefix, requests[0].suffix, requests[0].path) == (prefix, text[len(prefix) :], "a.py")


def test_colons_in_a_relative_path(
    tmp_path: Path, models: Models, command: Command, requests: list[CompletionRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a:1").mkdir()
    (tmp_path / "a:1" / "b:2:3.py").write_text("x = 1\n")
    assert command("complete", "a:1/b:2:3.py:1:3", *models.flags, "--max-tokens", "2").code == 0
    assert requests[0].prefix == "x "


def test_an_empty_file_needs_a_token_before_its_text(tmp_path: Path, models: Models, command: Command) -> None:
    """A fill-in-the-middle marker, or the token that begins a text."""
    file = tmp_path / "empty.py"
    file.touch()
    command("complete", f"{file}:1:1", *models.flags, "--shape", "raw").check_mistake("give some text")
    done = command("complete", f"{file}:1:1", *models.flags, "--max-tokens", "4")
    assert (done.code, done.err) == (0, "")
    with_bos = write_model(tmp_path / "bos", "llama3", 0)
    done = command("complete", f"{file}:1:1", *models.pair, "--target", with_bos, "--max-tokens", "4")
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_long_prompt_is_trimmed_and_that_is_reported(
    form: list[str], place: str, models: Models, command: Command
) -> None:
    done = command("complete", place, *models.flags, "--context", "64", "--max-tokens", "4", *form)
    assert done.code == 0 and done.out
    cut = "the prompt is longer than the context of 64 tokens and was trimmed: only text near the cursor is used"
    assert done.err == f"codespec: {cut}\n"


def test_the_models_own_maximum_counts_too(place: str, models: Models, command: Command, tmp_path: Path) -> None:
    short = write_model(tmp_path / "short", "gpt2", 0, positions=80)
    done = command("complete", place, *models.pair, "--target", short, "--max-tokens", "8")
    assert done.code == 0 and "context of 80 tokens and was trimmed" in done.err


def test_what_the_engine_noticed_is_reported(
    place: str, models: Models, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    varies(monkeypatch)
    done = command("complete", place, *models.flags, "--dtype", "float32", "--max-tokens", "2")
    assert done.code == 0
    assert done.err.startswith("codespec: exact mode does not hold here (it varies)") and done.err.count("\n") == 1


def test_settings_from_a_file_reach_the_engine(
    place: str, models: Models, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "codespec.toml"
    file.write_text(
        f'target = "{models.target}"\ndrafter = "{models.drafter}"\ndtype = "{models.dtype}"\n'
        'warmup = 0\ndraft_tokens = 0\npolicy = "fixed"\n'
    )
    words = ["complete", place, "--config", file, "--max-tokens", "8", "--shape", "raw", "--json"]
    assert parse(command(*words).out)["stats"]["drafted"] == 0
    monkeypatch.setenv("CODESPEC_DRAFT_TOKENS", "2")
    assert parse(command(*words).out)["stats"]["drafted"] > 0
    assert parse(command(*words, "--draft-tokens", "0").out)["stats"]["drafted"] == 0


def test_a_completion_that_shows_nothing_says_why() -> None:
    stats = Stats(ended="nothing worth showing is left")
    assert why_empty(Completion("x = 1", (1,), "stop", stats)) == []
    assert why_empty(Completion("\n", (1,), "stop", stats)) == [
        "there is nothing to add here (nothing worth showing is left)"
    ]
    assert why_empty(Completion("", (), "stop", Stats())) == [
        "there is nothing to add here (the model ended its text at once)"
    ]
